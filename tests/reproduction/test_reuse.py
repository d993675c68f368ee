"""A run is taken over from another only if it would have been the very same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.mechanism.contract import Contract
from reproduction.config import RunConfig
from reproduction.planning import Plans
from reproduction.reuse import RECORDED, Twins, twin_record
from reproduction.store import Record
from reproduction.stored_numbers import contract_numbers

# FSBM's draws are fixed, and its own cost sets ε: Q has no say.
CONFIG = RunConfig.from_dict(
    {
        "dataset": "digits",
        "similarity": 100,
        "mechanism": "fsbm-5",
        "cost": 5,
        "noise_weight": 9,
        "noise": "lemma1",
        "c2": 0.1,
        "clip_norm": 1,
        "learning_rate": 0.5,
        "num_clients": 10,
        "seed": 0,
    }
)
OTHER_Q = CONFIG.changed(noise_weight=2)


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans.load(tmp_path)


class Given(Plans):
    """Contracts by Q, whatever a planner would say."""

    def contract(self, config: RunConfig) -> Contract:
        return self.given[config.noise_weight]

    given: dict[float, Contract]


def stored(config: RunConfig, plans: Plans, **changes: Any) -> Record:
    return Record(config=config, result={**contract_numbers(plans.contract(config)), "accuracy": 0.9, **changes})


def found(config: RunConfig, plans: Plans, *records: Record) -> str | None:
    twin = Twins(records, plans).of(config)
    return None if twin is None else twin[0].key


def given(folder: Path, plans: Plans, **changes: Any) -> Given:
    """The contract of `CONFIG`, changed for the other Q."""
    contract = plans.contract(CONFIG)
    made = Given(folder=folder)
    made.given = {9.0: contract, 2.0: replace(contract, **changes)}
    return made


def test_another_q_is_no_other_run_where_draws_are_fixed(plans: Plans) -> None:
    assert found(OTHER_Q, plans, stored(CONFIG, plans)) == CONFIG.key


@pytest.mark.parametrize(
    "setting",
    [
        {"learning_rate": 0.25}, {"c2": 0.2}, {"momentum": 0.5}, {"rounds": 7}, {"similarity": 0}, {"seed": 1},
        {"held_out": True}, {"clip_norm": 2},
    ],
    ids=str,
)  # fmt: skip
def test_all_else_that_a_run_depends_on_must_be_equal(setting: dict[str, Any], plans: Plans) -> None:
    assert found(OTHER_Q.changed(**setting), plans, stored(CONFIG, plans)) is None


def test_with_the_eta_of_another_mechanism_q_changes_what_is_sold(plans: Plans) -> None:
    one, other = CONFIG.changed(cost_of="jsam"), OTHER_Q.changed(cost_of="jsam")
    assert np.array_equal(plans.contract(one).selection_probs, plans.contract(other).selection_probs)
    assert not np.allclose(plans.contract(one).epsilons, plans.contract(other).epsilons)
    assert found(other, plans, stored(one, plans)) is None


def test_other_draws_are_another_run(plans: Plans, tmp_path: Path) -> None:
    """What they sell may be equal, and all that is recorded of them."""
    p = plans.contract(CONFIG).selection_probs
    same = given(tmp_path, plans, selection_probs=p.copy())
    assert found(OTHER_Q, same, stored(CONFIG, same)) == CONFIG.key
    others = given(tmp_path, plans, selection_probs=np.roll(p, 1))
    assert found(OTHER_Q, others, stored(CONFIG, others)) is None


def test_jsams_draws_follow_q(plans: Plans) -> None:
    one, other = (config.changed(mechanism="jsam", cost_of="jsam", cost=1) for config in (CONFIG, OTHER_Q))
    assert found(one, plans, stored(one, plans)) == one.key
    assert found(other, plans, stored(one, plans)) is None


def test_epsilons_agree_as_closely_as_eta_is_found(plans: Plans, tmp_path: Path) -> None:
    epsilons = plans.contract(CONFIG).epsilons
    for off, twin in ((1e-8, CONFIG.key), (1e-6, None)):
        near = given(tmp_path, plans, epsilons=epsilons * (1 + off))
        assert found(OTHER_Q, near, stored(CONFIG, near)) == twin


@pytest.mark.parametrize("name", RECORDED)
def test_a_run_whose_recorded_contract_is_not_todays_is_no_twin(name: str, plans: Plans) -> None:
    """The planner, η or the losses may have changed since."""
    record = stored(CONFIG, plans)
    value = record.result[name]
    last_digit = value if isinstance(value, int) else value * (1 + 1e-6)
    assert found(OTHER_Q, plans, stored(CONFIG, plans, **{name: last_digit})) == CONFIG.key
    changed = value + 1 if isinstance(value, int) else value * 1.0001
    for wrong in (changed, None):
        assert found(OTHER_Q, plans, stored(CONFIG, plans, **{name: wrong})) is None
    lacking = {key: number for key, number in record.result.items() if key != name}
    assert found(OTHER_Q, plans, Record(config=CONFIG, result=lacking)) is None


def test_a_twin_of_a_twin_names_the_run_that_was_made(plans: Plans) -> None:
    twin = twin_record(OTHER_Q, stored(CONFIG, plans), plans.contract(OTHER_Q))
    third = CONFIG.changed(noise_weight=4)
    search = Twins([twin], plans).of(third)
    assert search is not None
    record = twin_record(third, *search)
    assert record.result["same_as"] == twin.result["same_as"] == CONFIG.key
    assert record.result["accuracy"] == 0.9
    assert record.result["loss_bound"] == pytest.approx(plans.contract(third).loss_bound, rel=1e-5)
