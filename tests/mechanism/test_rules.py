"""Rules: validated once, the same from any file, and the only way from settings to a mechanism."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

import jsam
from jsam.errors import InputError
from jsam.mechanism.rules import Rules

FULL = Rules(
    mechanism="fsbm-3",
    prior="beta:2,5",
    budget=4.0,
    budget_probability=0.9,
    noise_weight=2.0,
    bias_weight=0.5,
    max_selection_prob=0.5,
    max_epsilon=7.0,
    seed=3,
)


@pytest.mark.parametrize("rules", [FULL, Rules(loss_weight=2), Rules(budget=1)])
def test_rules_come_back_from_json_and_from_toml(rules: Rules, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(rules.to_toml())
    assert Rules.from_dict(rules.as_dict()) == rules
    assert Rules.load(file) == rules


def test_equal_rules_have_equal_hashes_and_digests() -> None:
    assert Rules(loss_weight=2) == Rules(loss_weight=2.0)
    assert hash(Rules(loss_weight=2)) == hash(Rules(loss_weight=2.0))
    assert Rules(loss_weight=2).digest == Rules(loss_weight=2.0).digest
    assert len({replace(FULL, seed=seed).digest for seed in range(5)}) == 5


def test_rules_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.seed = 4  # type: ignore[misc]


def test_a_setting_given_beside_a_file_takes_its_place(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(FULL.to_toml())
    assert Rules.load(file, noise_weight=9.0, max_epsilon=None) == replace(FULL, noise_weight=9.0)
    by_weight = Rules.load(file, loss_weight=5.0)
    assert (by_weight.loss_weight, by_weight.budget, by_weight.budget_probability) == (5.0, None, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "loss_weight or budget"),
        ({"loss_weight": 1.0, "budget": 1.0}, "not both"),
        ({"loss_weight": 1.0, "budget_probability": 0.5}, "needs a budget"),
        ({"budget": -1.0}, "budget is -1.0"),
        ({"budget": 1.0, "budget_probability": 1.0}, "strictly between 0 and 1"),
        ({"loss_weight": "5"}, "loss_weight is '5'; it must be a number"),
        ({"loss_weight": True}, "loss_weight is True"),
        ({"loss_weight": 1.0, "seed": 1.5}, "seed is 1.5"),
        ({"loss_weight": 1.0, "mechanism": ""}, "mechanism is ''"),
        ({"loss_weight": 1.0, "noise_wieght": 2.0}, "unknown setting 'noise_wieght'"),
    ],
)
def test_settings_that_make_no_rules_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rules.from_dict(settings, "a.toml")


@pytest.mark.parametrize("text", ["mechanism = ", "\0"])
def test_a_file_that_is_no_toml_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"rules .*rules\.toml is not TOML"):
        Rules.load(file)
    with pytest.raises(InputError, match=r"rules .* cannot be read"):
        Rules.load(tmp_path / "nowhere.toml")


def test_the_contract_is_that_of_the_mechanism_with_the_same_settings() -> None:
    rules = Rules(mechanism="jsam", prior="uniform:0,1", loss_weight=3.0, noise_weight=2.0, max_epsilon=4.0)
    market = rules.market([0.1, 0.4, 0.8], ids=["a", "b", "c"])
    own = jsam.plan(market, jsam.JSAM(loss_weight=3.0, noise_weight=2.0, max_epsilon=4.0))
    contract = rules.contract(market)
    assert contract.epsilons.tolist() == own.epsilons.tolist()
    assert contract.payments is not None
    assert own.payments is not None
    assert contract.payments.tolist() == own.payments.tolist()


def test_a_budget_gives_the_loss_weight_that_it_buys() -> None:
    rules = Rules(mechanism="usbm", prior="uniform:0,1", budget=5.0)
    market = rules.market([0.2, 0.5, 0.9])
    bought = jsam.loss_weight_for_budget(
        jsam.USBM(loss_weight=1.0), 5.0, prior=jsam.parse_prior("uniform:0,1"), num_clients=3
    )
    contract = rules.contract(market)
    assert contract.loss_weight == bought.loss_weight
    assert contract.budget == 5.0


def test_a_cap_on_p_that_a_fixed_share_exceeds_is_refused() -> None:
    rules = Rules(mechanism="fsbm-10", prior="uniform:0,1", loss_weight=1.0, max_selection_prob=0.05)
    with pytest.raises(InputError, match="above max_selection_prob"):
        rules.contract(rules.market([0.1 + 0.01 * k for k in range(20)]))
