"""`jsam supernode`: what it needs, and a client's own accounts, campaign by campaign and together."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

from jsam.campaign.client.client_files import ClientFiles, write_client
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.refusal import Reason
from jsam.privacy.gaussian import composed_epsilon
from tests.campaign.books import MODEL, ask, noisy, refused
from tests.campaign.offers import offer
from tests.campaign.test_announcement import published
from tests.cli.conftest import Run


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """Two campaigns with a release each, and one whose offer was taken back."""
    file = write_client(
        tmp_path / "client", name="hospital-a", sensitivity=0.2, inputs=np.zeros((2, 1)), targets=np.array([0, 1])
    )
    ledger = ClientLedger(ClientFiles.load(file).ledger)
    for name in ("spring", "summer", "autumn"):
        ledger.accept(offer(campaign=name))
        if name != "autumn":
            ledger.answer(ask(offer(campaign=name), 0), noisy, model=MODEL)
    ledger.close("autumn")
    return file


def test_the_statement_has_the_sums_over_all_campaigns(run: Run, client: Path) -> None:
    stated = json.loads(run("supernode", client, "--statement", "--format", "json").out)
    spent = [entry["epsilon_spent"] for entry in stated["campaigns"]]
    assert stated["spent"] == {
        "epsilon": pytest.approx(composed_epsilon([offer().mu / math.sqrt(5)] * 2, 1e-5)),
        "delta": 1e-5,
        "adjacency": "add-remove",
        "sum_epsilon": pytest.approx(sum(spent)),
        "sum_delta": pytest.approx(2e-5),
    }
    assert stated["spent"]["epsilon"] < 0.8 * sum(spent)
    assert {entry["campaign"]: entry["withdrawn"] for entry in stated["campaigns"]} == {
        "spring": False, "summer": False, "autumn": True,
    }  # fmt: skip


def test_the_table_says_what_is_done_and_keeps_long_names_whole(
    run: Run, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ledger = ClientLedger(ClientFiles.load(client).ledger)
    terms = offer(campaign="winter-campaign-of-the-three-hospitals")
    ledger.accept(terms)
    for index in range(terms.participations):
        ledger.answer(ask(terms, index), noisy, model=MODEL)
    shown = run("supernode", client, "--statement").out
    assert "…" not in shown
    assert "ε sold" in shown
    (spring,) = [line for line in shown.splitlines() if "spring" in line]
    (winter,) = [line for line in shown.splitlines() if "winter" in line]
    assert "open" in spring
    assert "done" in winter


@pytest.mark.parametrize("address", ["foo", "foo:", ":8000", "foo:port", "foo:0", "foo:70000"])
def test_an_address_without_a_port_is_refused_at_once(address: str, run: Run, client: Path) -> None:
    result = run("supernode", client, "--superlink", address, "--insecure")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "must be HOST:PORT" in result.err


def test_data_that_cannot_be_read_are_refused_before_a_process_starts(run: Run, client: Path) -> None:
    (client.parent / "data.npz").unlink()
    result = run("supernode", client, "--superlink", "127.0.0.1:1", "--insecure")
    assert result.code == 2
    assert "data.npz cannot be read: No such file" in result.err
    assert "Traceback" not in result.err


def test_the_table_says_the_sums_and_what_was_withdrawn(run: Run, client: Path) -> None:
    shown = run("supernode", client, "--statement").out
    assert "δ = 2e-05" in shown
    assert "withdrawn" in shown


def test_what_is_wrong_with_the_files_is_one_line(run: Run, client: Path, tmp_path: Path) -> None:
    """Before the warning about plain text, and with the option that named the file."""
    connect = ("--superlink", "127.0.0.1:1")
    broken = tmp_path / "broken.toml"
    broken.write_text("junk")
    for arguments, wanted in (
        ((broken, *connect, "--insecure"), "is not TOML"),
        ((client, *connect, "--key", tmp_path / "none"), "--key '"),
        ((client, *connect, "--key", client, "--root-certificates", tmp_path), "--root-certificates '"),
    ):
        result = run("supernode", *arguments)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert wanted in result.err


@pytest.mark.parametrize("missing", [("torch",), ("flwr",), ("torch", "flwr")], ids=" and ".join)
@pytest.mark.parametrize("command", ["supernode client.toml", "deploy-local"])
def test_without_flower_or_torch_the_extra_that_brings_both_is_named(
    command: str, missing: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else found(name))
    name = command.split(maxsplit=1)[0]
    result = run(*command.split())
    assert result.code == 2
    assert f"{name} needs Flower and torch, which are not installed: install jsam with its extra 'flower'" in result.err
    assert result.err.count("\n") == 1


def test_withdrawing_needs_no_server_and_says_what_was_spent_and_is_due(run: Run, client: Path) -> None:
    terms = offer(campaign="spring")
    result = run("supernode", client, "--withdraw", "spring")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    assert "withdrawn from spring: ε = " in result.out
    assert "of 1.5 was spent at δ = 1e-05, in 1 of 5 draws" in result.out
    assert f"{terms.payment_for(1):.6g} of 0.8 is due" in result.out
    ledger = ClientFiles.load(client).books()
    assert refused(lambda: ledger.answer(ask(terms, 1), noisy, model=MODEL)) is Reason.CAMPAIGN_CLOSED
    assert run("supernode", client, "--withdraw", "spring").out == result.out


def test_withdrawing_from_what_released_nothing_and_from_what_nobody_knows(run: Run, client: Path) -> None:
    ledger = ClientFiles.load(client).books()
    ledger.hear(published(campaign="heard"))
    ledger.accept(offer(campaign="accepted"))
    for name in ("heard", "accepted"):
        assert run("supernode", client, "--withdraw", name).out == (
            f"withdrawn from {name}: nothing was released, nothing is due\n"
        )
        assert refused(lambda: ledger.hear(published(campaign=name))) is Reason.CAMPAIGN_CLOSED  # noqa: B023
    result = run("supernode", client, "--withdraw", "sprong")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "has no campaign 'sprong'; it knows: " in result.err
    assert "spring" in result.err


def test_pausing_is_a_flag_and_the_statement_says_so(run: Run, client: Path) -> None:
    assert run("supernode", client, "--pause").out == "hospital-a answers no request until --unpause\n"
    assert "is paused" in run("supernode", client, "--statement").out
    assert json.loads(run("supernode", client, "--statement", "--format", "json").out)["paused"] is True
    assert run("supernode", client, "--unpause").out == "hospital-a answers again\n"
    assert "is paused" not in run("supernode", client, "--statement").out


def test_the_policy_in_force_is_shown_with_what_nobody_wrote_down(run: Run, client: Path) -> None:
    shown = run("supernode", client, "--show-policy").out
    said = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (said["max_epsilon"], said["total_epsilon"], said["max_campaigns"]) == ("10.0", "20.0", "100")
    assert "below 1 ÷ number of records" in shown
    assert said["reply_seconds"].startswith("as measured")
    limits = json.loads(run("supernode", client, "--show-policy", "--format", "json").out)["policy"]
    assert limits["max_draws"] == 100_000


def test_damaged_books_are_one_line_that_names_the_file(run: Run, client: Path) -> None:
    """Whatever is asked for; and nothing is started."""
    (path, *_) = sorted(client.parent.rglob("terms.json"))
    path.unlink()
    connect = ("--superlink", "127.0.0.1:1", "--insecure")
    for arguments in (("--statement",), ("--withdraw", "spring"), connect):
        result = run("supernode", client, *arguments)
        assert result.code == 2
        assert (result.out, result.err.count("\n")) == ("", 1)
        assert f"{path} is gone" in result.err


def test_a_ledger_of_an_earlier_version_is_adopted_on_demand(run: Run, client: Path) -> None:
    books = ClientFiles.load(client).ledger
    before = run("supernode", client, "--statement").out
    for name in ("books.chain", "books.head"):
        (books / name).unlink()
    assert "--adopt-ledger" in run("supernode", client, "--statement").err
    assert run("supernode", client, "--adopt-ledger").out == f"{books}: 3 campaigns adopted as they were found\n"
    assert run("supernode", client, "--statement").out == before
    assert run("supernode", client, "--adopt-ledger").code == 2


def test_only_one_of_them_at_a_time(run: Run, client: Path) -> None:
    result = run("supernode", client, "--pause", "--statement")
    assert (result.code, result.err.count("\n")) == (2, 1)
