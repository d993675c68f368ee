"""Mechanisms by name: what they say of themselves, and a user's own classes."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.errors import InputError
from jsam.mechanism import families, registry
from jsam.mechanism.audit import audit
from jsam.mechanism.budget.budget_cache import BudgetCache
from jsam.mechanism.families.description import LOSSES, SELECTION_PROBS
from jsam.mechanism.registry import (
    description_of,
    find_description,
    import_mechanism,
    mechanism_named,
    mechanism_names,
)
from jsam.mechanism.rules import Rules
from tests.mechanism.own_mechanisms import Careful, EqualShares

MARKET = jsam.Market(sensitivities=np.array([0.1, 0.3, 0.5]), prior=scipy.stats.uniform(0, 1))
HERE = "tests.mechanism.own_mechanisms"
AUCTIONS = {"all-in", "csra", "fairquery", "pay-as-bid", "posted-price", "proportional-share"}
RIVALS = {*AUCTIONS, "menu-K", "power-of-choice-M", "vcg"}


@pytest.fixture(autouse=True)
def _nothing_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_OWN", {})
    path = list(sys.path)
    yield
    sys.path[:] = path


def test_what_each_mechanism_says_of_itself() -> None:
    everything = {name: description_of(name) for name in mechanism_names()}
    assert list(everything)[-len(RIVALS) :] == [name for name in everything if name in RIVALS], "rivals come last"
    said = {name: description for name, description in everything.items() if name not in RIVALS}
    assert {name for name in said if said[name].chooses_probs} == {"jsam", "jsam-even", "jsam-ci"}
    assert {name for name in said if said[name].optimal} == {"jsam", "jsam-ci"}
    assert {name for name in said if not said[name].truthful} == {"jsam-ci"}
    assert {name for name in said if said[name].knows_sensitivities} == {"jsam-ci"}
    assert {name for name in said if said[name].sized} == {"fsbm-M", "bbm-M"}
    assert {name: said[name].needs for name in said if said[name].needs} == {
        "bbm-M": (LOSSES,),
        "usbm-compensated": (SELECTION_PROBS,),
    }
    assert [name for name in said if said[name].chooses_by_records] == ["bbm-M"]
    assert description_of("bbm-7") == said["bbm-M"]
    assert all(everything[name].summary for name in everything)
    assert {name for name in RIVALS if everything[name].spends_budget} == AUCTIONS
    assert {name for name in RIVALS if not everything[name].truthful} == {"all-in", "pay-as-bid"}
    assert not any(said[name].spends_budget for name in said)
    assert not any(everything[name].optimal for name in RIVALS)
    for description in everything.values():
        assert description_of(description.example) == description


def test_a_family_is_registered_by_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves.py").write_text(
        "from dataclasses import dataclass\n"
        "from jsam.mechanism.families.fsbm import FSBM\n"
        "@dataclass(frozen=True, kw_only=True, eq=False)\n"
        "class Halves(FSBM):\n"
        "    '''FSBM under another name.'''\n"
        "    label = 'halves-M'\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    registry._labelled.cache_clear()
    registry._by_label.cache_clear()
    try:
        assert "halves-M" in mechanism_names()
        assert mechanism_named("halves-2", loss_weight=1.0).plan(MARKET).num_selected == 2
    finally:
        sys.modules.pop("jsam.mechanism.families.halves", None)
        registry._labelled.cache_clear()
        registry._by_label.cache_clear()


def test_every_file_of_families_is_importable_on_its_own() -> None:
    names = {module.name for module in pkgutil.iter_modules(families.__path__)}
    assert {"jsam", "usbm", "fsbm", "bbm", "complete_information"} <= names
    for name in names:
        importlib.import_module(f"jsam.mechanism.families.{name}")


@pytest.mark.parametrize("weights", [{"loss_weight": 2.0}, {"loss_weight": 2.0, "noise_weight": 3.0}])
def test_an_own_class_plans_and_responds_with_the_weights_that_it_takes(weights: dict[str, Any]) -> None:
    name = f"{HERE}:Careful"
    import_mechanism(name)
    made = mechanism_named(name, **weights, bias_weight=1.0, max_selection_prob=None, max_epsilon=None)
    direct = Careful(**weights)
    assert made.plan(MARKET).as_dict() == direct.plan(MARKET).as_dict()
    assert (made.name, made.truthful) == ("careful", True)
    assert audit(MARKET, made, grid=8).ok
    again = made.with_loss_weight(4.0)
    assert again.plan(MARKET).as_dict() == Careful(**{**weights, "loss_weight": 4.0}).plan(MARKET).as_dict()
    assert description_of(name).summary == "JSAM with half of the ε from everybody."
    with pytest.raises(InputError, match=r"states no range .* give a loss weight"):
        jsam.loss_weight_for_budget(made, 1.0, prior=scipy.stats.uniform(0, 1), num_clients=3)


def test_an_own_range_is_a_mechanism_like_ours(tmp_path: Path) -> None:
    name = f"{HERE}:EqualShares"
    assert import_mechanism(name) is EqualShares
    made = mechanism_named(name, loss_weight=2.0, noise_weight=3.0, max_epsilon=1.0)
    assert isinstance(made, EqualShares)
    assert made.name == name
    usbm = jsam.USBM(loss_weight=2.0, noise_weight=3.0, max_epsilon=1.0)
    assert made.plan(MARKET).epsilons.tolist() == usbm.plan(MARKET).epsilons.tolist()
    cache = BudgetCache(tmp_path / "budgets")
    bought = jsam.loss_weight_for_budget(made, 1.0, prior=scipy.stats.uniform(0, 1), num_clients=3, cache=cache)
    assert 0 < bought.expected_cost <= 1.0
    assert not (tmp_path / "budgets").exists(), "the user may change the class, and with it the answer"


def test_an_own_class_may_spend_a_budget() -> None:
    name = f"{HERE}:EqualSplit"
    import_mechanism(name)
    rules = Rules(mechanism=name, prior="uniform:0,1", budget=6.0)
    assert rules.spends_budget
    contract = rules.contract(MARKET)
    assert contract.payments is not None
    assert contract.payments.tolist() == [2.0] * 3
    assert mechanism_named(name, loss_weight=1.0, budget=6.0).with_loss_weight(3.0).plan(MARKET).budget == 6.0
    with pytest.raises(InputError, match="set budget to what may be spent"):
        Rules(mechanism=name, prior="uniform:0,1", loss_weight=6.0).contract(MARKET)


@pytest.mark.parametrize(
    ("options", "refused"),
    [({"bias_weight": 2.0}, "bias_weight"), ({"max_epsilon": 1.0}, "max_epsilon")],
)
def test_a_weight_that_an_own_class_cannot_take_is_refused_by_name(options: dict[str, Any], refused: str) -> None:
    name = f"{HERE}:Careful"
    import_mechanism(name)
    with pytest.raises(InputError, match=f"takes no {refused}; it takes: loss_weight noise_weight"):
        mechanism_named(name, loss_weight=1.0, **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuchmodule:Careful", "cannot import nosuchmodule: ModuleNotFoundError"),
        ("broken_module:Careful", "cannot import broken_module: SyntaxError"),
        (f"{HERE}:Nothing", "has no class Nothing"),
        (f"{HERE}:NO_CLASS", "has no class NO_CLASS"),
        (f"{HERE}:PlansOnly", r"lacks respond\(\)"),
        (f"{HERE}:Unfinished", r"leaves profiles\(\) open"),
        ("os.path", "must be written package.module:Class"),
        ("os:path;x", "must be written package.module:Class"),
    ],
)
def test_what_is_no_mechanism_is_refused_in_one_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        import_mechanism(name)
    assert "\n" not in str(caught.value)


def test_a_class_without_a_name_is_refused_when_it_is_made() -> None:
    import_mechanism(f"{HERE}:Nameless")
    with pytest.raises(InputError, match="needs a name, which is text"):
        mechanism_named(f"{HERE}:Nameless", loss_weight=1.0)


def test_a_name_alone_never_imports_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of a campaign come from the network: whoever writes them must not choose what runs on a client."""
    (tmp_path / "trap_mechanism.py").write_text("raise SystemExit('the trap ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "trap_mechanism:Trap"
    for ask in (description_of, lambda name: mechanism_named(name, loss_weight=1.0)):
        with pytest.raises(InputError, match="unknown mechanism 'trap_mechanism:Trap'"):
            ask(name)
    with pytest.raises(InputError, match="unknown mechanism"):
        jsam.mechanism_named(f"{HERE}:Careful", loss_weight=1.0)
    assert find_description(name) is None
    assert "trap_mechanism" not in sys.modules
