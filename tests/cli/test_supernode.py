"""`jsam supernode --statement`: a client's own accounts, campaign by campaign and together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jsam.flower.client_files import ClientFiles, write_client
from jsam.flower.client_ledger import ClientLedger
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
    assert stated["spent"] == {"epsilon": pytest.approx(sum(spent)), "delta": pytest.approx(2e-5)}
    assert {entry["campaign"]: entry["withdrawn"] for entry in stated["campaigns"]} == {
        "spring": False, "summer": False, "autumn": True,
    }  # fmt: skip


def test_the_table_says_the_sums_and_what_was_withdrawn(run: Run, client: Path) -> None:
    shown = run("supernode", client, "--statement").out
    assert "δ = 2e-05" in shown
    assert "withdrawn" in shown
