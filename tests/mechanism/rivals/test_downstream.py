"""Rivals from their rules to training: what is refused, what a budget means, and that no draw is without its noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.terms import Terms
from jsam.campaign.verification import Status, check_loss_weight
from jsam.cli import main
from jsam.errors import InputError
from jsam.mechanism.contract_files import contract_from_dict
from jsam.mechanism.registry import description_of, mechanism_named
from jsam.mechanism.rules import Rules
from jsam.privacy import epsilon_of
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.settings import TrainingSettings

AUCTIONS = ("fairquery", "proportional-share", "csra", "posted-price", "all-in", "pay-as-bid")
RIVALS = (*AUCTIONS, "vcg", "menu-3", "power-of-choice-2")
EXAMPLE = Path(__file__).parents[3] / "examples" / "clients.csv"
REPORTS = np.random.default_rng(0).uniform(0, 1, 12).tolist()


@pytest.mark.parametrize("name", AUCTIONS)
def test_an_auction_takes_a_budget_and_no_loss_weight(name: str) -> None:
    assert description_of(name).spends_budget
    with pytest.raises(InputError, match="has no loss weight; set budget to what may be spent"):
        Rules(mechanism=name, prior="uniform:0,1", loss_weight=5.0).mechanism_at(5.0)
    with pytest.raises(InputError, match="set budget"):
        mechanism_named(name, loss_weight=1.0)
    with pytest.raises(InputError, match=r"budget is -1\.0"):
        mechanism_named(name, budget=-1.0)
    rules = Rules(mechanism=name, prior="uniform:0,1", budget=3.0, max_epsilon=2.0)
    assert rules.budget_plan(12) is None
    contract = rules.contract(rules.market(REPORTS))
    assert contract.budget == 3.0
    assert contract.total_payment is not None
    assert contract.total_payment <= 3.0 * (1 + 1e-12)
    assert contract.epsilons.max() <= 2.0
    poor = Rules(mechanism=name, prior="uniform:0,1", budget=1e-4)
    market = poor.market(REPORTS)
    with pytest.raises(InputError, match=r"buys from nobody: no client sells within the budget of 0\.0001"):
        poor.contract(market)


@pytest.mark.parametrize("name", RIVALS)
def test_no_contract_gives_more_draws_than_its_epsilon_covers(name: str) -> None:
    """The noise is that of the draws that the schedule has, whoever planned; nobody without ε is ever drawn."""
    rules = Rules(mechanism=name, prior="uniform:0,1", budget=3.0, max_epsilon=2.0)
    contract = rules.contract(rules.market(REPORTS))
    assert contract.selection_probs.sum() == pytest.approx(1)
    assert np.all((contract.selection_probs > 0) == (contract.epsilons > 0))
    settings = TrainingSettings(rounds=40, per_round=5, seed=1)
    plan = NoisePlan.of(contract, settings, (50,) * 12)
    drawn = plan.schedule.participations
    assert np.all(drawn[contract.epsilons == 0] == 0)
    for k in np.flatnonzero(drawn):
        mu = np.sqrt(drawn[k]) / plan.noise_multipliers[k]
        assert float(epsilon_of(mu, settings.delta)) <= contract.epsilons[k]


@pytest.mark.parametrize("name", RIVALS)
def test_contracts_come_back_from_files(name: str) -> None:
    rules = Rules(mechanism=name, prior="uniform:0,1", budget=3.0)
    contract = rules.contract(rules.market(REPORTS))
    again = contract_from_dict(json.loads(json.dumps(contract.as_dict())))
    assert again.as_dict() == contract.as_dict()
    assert Rules.from_dict(rules.as_dict()) == rules


@pytest.mark.parametrize("name", AUCTIONS)
def test_in_a_campaign_a_client_need_not_look_for_a_loss_weight(name: str) -> None:
    settings = {"campaign": "ours", "mechanism": name, "budget": 3.0, "max_epsilon": 2.0, "seed": 1}
    rules = CampaignRules.from_dict(settings)
    names = [f"client-{k}" for k in range(12)]
    contract = rules.contract(names, REPORTS)
    k = int(np.argmax(contract.epsilons))
    assert contract.payments is not None
    terms = Terms.of_contract(
        campaign="ours",
        client=names[k],
        epsilon=float(contract.epsilons[k]),
        delta=1e-5,
        participations=7,
        clip_norm=1.0,
        samples=100,
        adjacency="add-remove",
        payment=float(contract.payments[k]),
        public=rules.inputs(12, contract.loss_weight),
    )
    assert check_loss_weight(terms).status is Status.PASSED


def test_all_stand_side_by_side(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = [word for name in ("jsam", *RIVALS) for word in ("--mechanism", name)]
    common = ["compare", str(EXAMPLE), "--prior", "uniform:0,1", *names, "--format", "json"]
    assert main([*common, "--budget", "10"]) == 0
    rows = {row["mechanism"]: row for row in json.loads(capfd.readouterr().out)["mechanisms"]}
    assert list(rows) == ["jsam", *RIVALS]
    for name, row in rows.items():
        assert row["error"] is None
        assert (row["loss_weight"] is None) == (row["objective"] is None) == (name in AUCTIONS)
        if name in AUCTIONS:
            assert row["total_payment"] <= 10 * (1 + 1e-12)
    assert rows["all-in"]["expected_cost"] == pytest.approx(10)
    assert rows["pay-as-bid"]["expected_cost"] == pytest.approx(rows["pay-as-bid"]["total_payment"])


def test_without_a_budget_an_auction_says_so_in_its_row(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", str(EXAMPLE), "--prior", "uniform:0,1", "--loss-weight", "5", "--mechanism", "csra"]
    assert main(asked) == 2
    assert capfd.readouterr().err == (
        "jsam: error: csra spends a budget and has no loss weight; set --budget to what may be spent\n"
    )


def test_the_plan_shows_the_budget_and_no_loss_weight(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", str(EXAMPLE), "--prior", "uniform:0,1", "--budget", "10", "--mechanism", "fairquery"]
    assert main(asked) == 0
    shown = capfd.readouterr().out
    assert "never more than this falls due" in shown
    assert "loss weight" not in shown
