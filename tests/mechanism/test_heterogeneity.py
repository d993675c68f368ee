"""ζ² by the way in which data are spread: against the variance of label distributions that are drawn so."""

from __future__ import annotations

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.heterogeneity import heterogeneity


def spread(shares: FloatArray) -> float:
    """The mean over clients of ‖h_k − h‖², with h the distribution that all are drawn around."""
    return float(((shares - 1 / shares.shape[1]) ** 2).sum(axis=1).mean())


def test_some_classes_each() -> None:
    shares = np.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]])
    assert heterogeneity("classes:2/4") == pytest.approx(spread(shares), rel=1e-12)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet(alpha: float) -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(10, alpha), size=40_000)
    assert heterogeneity(f"dirichlet:{alpha}/10") == pytest.approx(spread(shares), rel=0.02)


def test_few_records_differ_by_chance() -> None:
    shares = np.random.default_rng(0).multinomial(60, np.full(10, 0.1), size=40_000) / 60
    assert heterogeneity("alike:60/10") == pytest.approx(spread(shares), rel=0.02)
    assert heterogeneity("alike", samples=60) == heterogeneity("alike:60/10")


def test_similarity_lies_between_alike_and_two_classes() -> None:
    assert heterogeneity("similarity:100/600") == heterogeneity("alike:600/10")
    assert heterogeneity("similarity:0/600") == pytest.approx(heterogeneity("classes:2/10") + 0.0015)
    assert heterogeneity("similarity:50") == pytest.approx(0.25 * 0.4)


@pytest.mark.parametrize(
    "text", ["", "much", "classes:11/10", "classes", "dirichlet:0", "alike", "similarity:101", "-1"]
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="heterogeneity"):
        heterogeneity(text)
