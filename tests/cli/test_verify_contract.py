"""`jsam verify-contract`: what it says of good and bad terms, and how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.terms import Terms
from tests.campaign.offers import forged, offer, public_inputs
from tests.cli.conftest import Run


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    path = tmp_path / "terms.json"
    path.write_text(offer().to_json())
    return path


def test_good_terms_pass_and_exit_0(run: Run, terms: Path) -> None:
    result = run("verify-contract", terms, "--sensitivity", "0.5", "--samples", "600")
    assert (result.code, result.err) == (0, "")
    assert "the terms hold" in result.out
    assert "violated" not in result.out


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        (forged(offer(), noise_std=0.001), "noise"),
        (forged(offer(), participations=6), "noise"),
        (Terms.from_dict({**offer().as_dict(), "payment": 7.0}), "hash"),
    ],
)
def test_bad_terms_exit_1_and_name_the_check(run: Run, terms: Path, changed: Terms, check: str) -> None:
    terms.write_text(changed.to_json())
    result = run("verify-contract", terms, "--format", "json")
    content = json.loads(result.out)
    assert result.code == 1
    assert content["ok"] is False
    assert check in [entry["name"] for entry in content["checks"] if entry["status"] == "violated"]
    assert "DO NOT ACCEPT" in run("verify-contract", terms).out


def test_a_payment_below_the_own_cost_exits_1(run: Run, terms: Path) -> None:
    assert run("verify-contract", terms, "--sensitivity", "0.533").code == 0
    assert run("verify-contract", terms, "--sensitivity", "0.534").code == 1


def test_the_policy_counts_the_own_books_of_other_campaigns(run: Run, terms: Path, tmp_path: Path) -> None:
    policy, books = tmp_path / "policy.toml", tmp_path / "books"
    policy.write_text("total_epsilon = 2.1\n")
    ClientLedger(books).accept(offer())
    arguments = ("verify-contract", terms, "--policy", policy, "--ledger", books, "--format", "csv")
    assert run(*arguments).code == 0  # the same campaign does not count twice
    ClientLedger(books).accept(offer(campaign="autumn"))
    result = run(*arguments)
    assert result.code == 1
    assert "policy: total-epsilon-exceeded,violated" in result.out


def test_the_total_is_taken_at_the_delta_of_the_policy(run: Run, terms: Path, tmp_path: Path) -> None:
    policy, books = tmp_path / "policy.toml", tmp_path / "books"
    """Two of ε = 1.5 come to 2.2 at δ = 1e-5, and to more at 1e-8."""
    ClientLedger(books).accept(offer(campaign="autumn"))
    policy.write_text("total_epsilon = 2.3\ntotal_delta = 1e-5\n")
    assert run("verify-contract", terms, "--policy", policy, "--ledger", books).code == 0
    policy.write_text("total_epsilon = 2.3\ntotal_delta = 1e-8\n")
    result = run("verify-contract", terms, "--policy", policy, "--ledger", books, "--format", "csv")
    assert result.code == 1
    assert "policy: total-epsilon-exceeded,violated" in result.out


def test_the_loss_weight_of_a_budget_is_checked_unless_somebody_says_no(run: Run, tmp_path: Path) -> None:
    terms, policy = tmp_path / "terms.json", tmp_path / "policy.toml"
    terms.write_text(offer(public=public_inputs(budget=10.0, loss_weight=1.0)).to_json())
    policy.write_text("check_loss_weight = false\n")
    for arguments, code in (
        ((), 1),
        (("--no-check-loss-weight",), 0),
        (("--policy", policy), 0),
        (("--policy", policy, "--check-loss-weight"), 1),
    ):
        assert run("verify-contract", terms, *arguments).code == code


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nowhere.json"], "cannot be read"),
        (["{terms}", "--policy", "nowhere.toml"], "nowhere.toml"),
        (["{terms}", "--sensitivity", "-1"], "sensitivity"),
        (["{terms}", "--samples", "0"], "samples"),
        (["{terms}", "--ledger", "books"], "--policy"),
        (["{policy}"], "not JSON"),
        (["{terms}", "--policy", "{policy}", "--ledger", "nowhere"], "no folder"),
        (["{terms}", "--output", "{terms}"], "overwrite"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    run: Run, terms: Path, tmp_path: Path, arguments: list[str], word: str
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("max_epsilon = 2\n")
    result = run("verify-contract", *(part.format(terms=terms, policy=policy) for part in arguments))
    assert (result.code, result.out) == (2, "")
    assert word in result.err
    assert result.err.count("\n") == 1


def test_it_needs_neither_flower_nor_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, jsam.campaign.client.client_ledger, jsam.campaign.client.client_noise; "
        "import jsam.campaign.verification; "
        "sys.exit(str({'torch', 'flwr'} & set(sys.modules) or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "0\n"
