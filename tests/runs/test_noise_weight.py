"""The noise weight against the noise that a run really has, and what it depends on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import jsam
from jsam.errors import InputError
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_weight import NoiseWeight
from jsam.runs.settings import TrainingSettings

D, M = 1000, 500


def test_the_noise_term_is_the_noise_of_a_run() -> None:
    """Q Σ p²/ε² is 1/C² times the variance of the mean over all draws of a run, all parameters together."""
    settings = TrainingSettings(rounds=4000, per_round=10, clip_norm=0.7, noise="lemma1", c2=math.sqrt(2))
    market = jsam.Market(sensitivities=np.linspace(0.1, 0.9, 9), prior=jsam.parse_prior("uniform:0,1"))
    contract = jsam.EvenJSAM(loss_weight=20.0).plan(market)
    plan = NoisePlan.of(contract, settings, (M,) * 9)
    variance = D * plan.typical_noise() ** 2 / settings.rounds
    p, eps = contract.selection_probs, contract.epsilons
    kept = eps > 0
    weight = NoiseWeight.of(settings, num_parameters=D, samples=M)
    term = weight.value * float((p[kept] ** 2 / eps[kept] ** 2).sum())
    assert term == pytest.approx(1 / settings.clip_norm**2 * variance, rel=0.02)


def test_it_follows_from_the_privacy_rule() -> None:
    usual = TrainingSettings()
    base = NoiseWeight.of(usual, num_parameters=D, samples=M).value
    assert NoiseWeight.of(replace(usual, adjacency="replace"), num_parameters=D, samples=M).value == pytest.approx(
        4 * base, rel=0.01
    )
    assert NoiseWeight.of(replace(usual, delta=1e-10), num_parameters=D, samples=M).value == pytest.approx(
        2 * base, rel=0.01
    )
    for same in ({"rounds": 7}, {"per_round": 3}, {"clip_norm": 9.0}):
        assert NoiseWeight.of(replace(usual, **same), num_parameters=D, samples=M).value == base


def test_its_words_hold_its_parts() -> None:
    words = NoiseWeight.of(TrainingSettings(), num_parameters=26_010, samples=600).words
    assert words.startswith("1.66 = 23 · D/M²")
    assert "26,010" in words
    assert "600" in words


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="needs a model and data"):
        NoiseWeight.of(TrainingSettings(), num_parameters=0, samples=600)
