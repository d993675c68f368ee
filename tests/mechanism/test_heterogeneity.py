"""ζ² by the way in which data are spread: against what clients that are drawn so teach about the whole."""

from __future__ import annotations

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.heterogeneity import heterogeneity, spread, with_records


def by_hand(shares: FloatArray, records: int) -> float:
    """(1 + χ²)/M of each client, in a loop; all labels are equally frequent in the whole."""
    each = []
    for client in shares:
        apart = sum((1 / len(client) - share) ** 2 / max(share, 1 / records) for share in client)
        each.append((1 + apart) / records)
    return float(np.mean(each))


def test_it_is_the_variance_of_what_a_client_says_of_the_whole() -> None:
    """A mean of unit vectors in which each label is weighed as the whole has it, from M records of one client."""
    rng = np.random.default_rng(3)
    classes, records = 4, 200
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    found = []
    for _ in range(4000):
        labels = rng.choice(classes, size=records, p=shares)
        # In many dimensions gradients of unit length are all but orthogonal.
        vectors = rng.normal(size=(records, 30))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        weights = (1 / classes) / shares[labels]
        found.append(float((np.mean(weights[:, None] * vectors, axis=0) ** 2).sum()))
    assert np.mean(found) == pytest.approx(spread(shares, np.full(classes, 1 / classes), records), rel=0.02)


def test_some_classes_each() -> None:
    shares = np.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]])
    assert heterogeneity("classes:2/4/300") == pytest.approx(by_hand(shares, 300), rel=1e-12)
    assert heterogeneity("classes:4/4/300") == pytest.approx(heterogeneity("alike:300/4"))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet(alpha: float) -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(10, alpha), size=40_000)
    assert heterogeneity(f"dirichlet:{alpha}/10/600") == pytest.approx(by_hand(shares, 600), rel=0.01)


def test_similarity_lies_between_alike_and_two_classes() -> None:
    assert heterogeneity("similarity:100/600") == pytest.approx(heterogeneity("alike:600/10"))
    assert heterogeneity("similarity:0/600") == pytest.approx(heterogeneity("classes:2/10/600"))
    half = np.array([[0.3, 0.3, *[0.05] * 8]])
    assert heterogeneity("similarity:50/600") == pytest.approx(by_hand(half, 600))


def test_more_records_say_more() -> None:
    for text in ("alike", "similarity:30", "dirichlet:0.5/10", "classes:2/10"):
        values = [heterogeneity(with_records(text, records)) for records in (50, 500, 5000)]
        assert values == sorted(values, reverse=True)


def test_records_are_filled_in_where_none_are_named() -> None:
    given = ["alike", "alike:60/5", "classes:2", "classes:2/5", "dirichlet:0.5/10/70", "similarity:30", "0.25"]
    filled = ["alike:600/10", "alike:60/5", "classes:2/10/600", "classes:2/5/600", "dirichlet:0.5/10/70"]
    assert [with_records(text, 600) for text in given] == [*filled, "similarity:30/600", "0.25"]
    for text in given:
        assert heterogeneity(with_records(text, 1000)) == heterogeneity(text)


@pytest.mark.parametrize(
    "text",
    [
        *["", "much", "classes:11/10", "classes", "dirichlet:0", "similarity:101", "similarity", "-1", "alike:0"],
        *["alike/1", "classes:2/99999999999999999999", "classes:2/999999999/600", "alike:1e400/10"],
        *["dirichlet:1e300/10", "dirichlet:1e-300/10", "dirichlet:1e400/10"],
    ],
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="heterogeneity"):
        heterogeneity(text)
    with pytest.raises(InputError, match="heterogeneity"):
        with_records(text, 600)


def test_a_histogram_is_no_text_of_published_rules() -> None:
    """It is bought from clients before there are rules, which campaigns cannot do yet."""
    for read in (heterogeneity, lambda text: with_records(text, 600)):
        with pytest.raises(InputError, match="jsam simulate alone can buy, campaigns do not have it yet"):
            read("histogram:0.5")
