"""Noise multipliers: what each rule, adjacency and number of draws gives."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.privacy import Adjacency, Exact, Lemma1, NoiseRule, gdp_mu, needed_c2, noise_multiplier, noise_rule


@pytest.mark.parametrize(
    ("epsilon", "c2", "digits"), [(0.001, 0.51, 2), (0.1, 0.91, 2), (1.0, 1.10, 2), (10.0, 1.47, 2), (1000.0, 7.2, 1)]
)
def test_the_c2_that_privacy_needs(epsilon: float, c2: float, digits: int) -> None:
    """Published values, δ = 1e-5, add-remove."""
    assert round(needed_c2(epsilon, 1e-5), digits) == c2


def test_lemma1_with_the_needed_c2_is_the_exact_rule() -> None:
    for epsilon in (0.01, 1.0, 100.0):
        lemma1 = noise_multiplier(epsilon, 1e-5, 7, noise="lemma1", c2=needed_c2(epsilon, 1e-5))
        assert lemma1 == pytest.approx(noise_multiplier(epsilon, 1e-5, 7), rel=1e-12)


def test_exact_is_root_of_draws_over_mu() -> None:
    assert noise_multiplier(2.0, 1e-6, 100) == pytest.approx(10 / gdp_mu(2.0, 1e-6), rel=1e-15)


def test_lemma1_is_the_papers_formula() -> None:
    expected = 0.3 * math.sqrt(50 * math.log(1e5)) / 4.0
    assert noise_multiplier(4.0, 1e-5, 50, noise="lemma1", c2=0.3) == pytest.approx(expected, rel=1e-14)


def test_replacing_a_record_needs_twice_the_noise_of_adding_one() -> None:
    one, two = (noise_multiplier(1.0, 1e-5, 10, adjacency=kind) for kind in ("add-remove", "replace"))
    assert two == 2 * one
    assert Adjacency.ADD_REMOVE.factor == 1
    assert "C/M" in Adjacency.ADD_REMOVE.words
    assert Adjacency.REPLACE.factor == 2
    assert "2C/M" in Adjacency.REPLACE.words


def test_noise_falls_with_epsilon_and_delta_and_grows_with_draws() -> None:
    epsilons = np.geomspace(1e-4, 1e3, 500)
    assert np.all(np.diff(noise_multiplier(epsilons, 1e-5, 10)) < 0)
    assert noise_multiplier(1.0, 1e-9, 10) > noise_multiplier(1.0, 1e-5, 10)
    assert np.all(np.diff(noise_multiplier(np.full(50, 1.0), 1e-5, np.arange(50))) > 0)


def test_who_is_never_drawn_needs_no_noise_even_having_sold_nothing() -> None:
    result = noise_multiplier(np.array([0.0, 1.0, 1.0]), 1e-5, np.array([0, 0, 4]))
    assert result.tolist() == [0.0, 0.0, noise_multiplier(1.0, 1e-5, 4)]
    assert noise_multiplier(0.0, 1e-5, 0) == 0.0
    assert noise_multiplier(1.0, 1e-5, 0, noise="lemma1", c2=1.0) == 0.0


def test_who_sold_nothing_must_not_be_drawn() -> None:
    with pytest.raises(InputError, match="epsilon of client 1 is 0"):
        noise_multiplier(np.array([1.0, 0.0]), 1e-5, np.array([1, 1]))


def test_a_rule_may_be_passed_as_an_object() -> None:
    rules: list[NoiseRule] = [Exact(), Lemma1(c2=0.7)]
    for rule, by_name in zip(
        rules, [noise_multiplier(1.0, 1e-5, 3), noise_multiplier(1.0, 1e-5, 3, noise="lemma1", c2=0.7)], strict=True
    ):
        assert noise_multiplier(1.0, 1e-5, 3, noise=rule) == by_name
        assert noise_rule(rule.label, c2=0.7 if rule.label == "lemma1" else None) == rule


@pytest.mark.parametrize(
    ("noise", "c2", "message"),
    [
        ("exactly", None, "noise is 'exactly'; it must be one of: exact, lemma1"),
        ("lemma1", None, "without c2"),
        ("exact", 1.0, "only noise 'lemma1' takes it"),
        ("lemma1", 0.0, "c2 is 0; it must be finite and above 0"),
        ("lemma1", float("nan"), "c2 is nan"),
    ],
)
def test_unusable_rules_are_refused_in_words(noise: str, c2: float | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        noise_multiplier(1.0, 1e-5, 3, noise=noise, c2=c2)


def test_unusable_arguments_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="adjacency is 'swap'; it must be one of: add-remove, replace"):
        noise_multiplier(1.0, 1e-5, 3, adjacency="swap")
    with pytest.raises(InputError, match="participations is -1"):
        noise_multiplier(1.0, 1e-5, -1)
    with pytest.raises(InputError, match=r"participations of client 1 is 2\.5; it must be a whole number"):
        noise_multiplier(np.ones(2), 1e-5, np.array([1.0, 2.5]))


def test_importing_privacy_loads_neither_torch_nor_dp_accounting() -> None:
    code = "import sys, jsam.privacy; print(sorted({'torch', 'dp_accounting'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
