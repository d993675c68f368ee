"""`jsam supernode`: what it needs, and a client's own accounts, campaign by campaign and together."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

from jsam.flower.client_files import ClientFiles, write_client
from jsam.flower.client_ledger import ClientLedger
from jsam.privacy.composition import composed_epsilon
from tests.cli.conftest import Run
from tests.flower.books import MODEL, ask, noisy
from tests.flower.offers import offer


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
