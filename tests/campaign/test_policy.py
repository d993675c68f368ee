"""The client's own limits: each one alone makes it decline, and a file with a mistake in it is no file at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsam.campaign.client.policy import Policy
from jsam.campaign.statement import NOTHING, Total
from jsam.errors import InputError
from jsam.privacy.gaussian import composed_epsilon
from tests.campaign.offers import offer


def codes(policy: Policy, others: Total = NOTHING, **changes: Any) -> list[str]:
    return [objection.code for objection in policy.judge(offer(**changes), others)]


def test_a_policy_is_in_force_where_nothing_is_said() -> None:
    assert codes(Policy()) == []
    assert codes(Policy(), epsilon=10.0) == []
    assert codes(Policy(), epsilon=10.01) == ["epsilon-too-large"]
    assert codes(Policy(), participations=100_001) == ["too-many-draws"]
    assert codes(Policy(), delta=1 / 600) == ["delta-too-large"]
    others = Total.of_terms(offer(epsilon=19.9))
    assert codes(Policy(), others, epsilon=0.001) == []
    assert codes(Policy(), others) == ["total-epsilon-exceeded"]


def test_left_out_the_total_is_taken_at_a_delta_well_below_one_in_the_number_of_records() -> None:
    """From 1 ÷ records on, publishing a record picked at random would be private."""
    assert Policy().delta_of(Total.of_terms(offer())) == 1e-5
    assert Policy().delta_of(Total.of_terms(offer(samples=10**6))) == pytest.approx(1e-7)
    assert Policy(total_delta=1e-4).delta_of(Total.of_terms(offer(samples=10**6))) == 1e-4


@pytest.mark.parametrize(
    ("within", "beyond", "code"),
    [
        ({"max_epsilon": 1.5}, {"max_epsilon": 1.49}, "epsilon-too-large"),
        ({"max_delta": 1e-5}, {"max_delta": 9e-6}, "delta-too-large"),
        ({"min_payment_per_epsilon": 0.8 / 1.5}, {"min_payment_per_epsilon": 0.54}, "payment-too-small"),
        ({"total_epsilon": 1.5}, {"total_epsilon": 1.49}, "total-epsilon-exceeded"),
        ({"max_draws": 5}, {"max_draws": 4}, "too-many-draws"),
        ({"total_epsilon": 1.5}, {"total_epsilon": 1.5, "total_delta": 9e-6}, "total-epsilon-exceeded"),
        ({"adjacency": ("add-remove",)}, {"adjacency": ("replace",)}, "adjacency-not-allowed"),
    ],
)
def test_each_limit_alone_declines_what_is_beyond_it(within: dict[str, Any], beyond: dict[str, Any], code: str) -> None:
    assert codes(Policy(**within)) == []
    assert codes(Policy(**beyond)) == [code]


def test_the_total_counts_what_other_campaigns_took() -> None:
    """Two of ε = 1.5 together are within what they cost exactly, which is well below 3, and within nothing less."""
    others = Total.of_terms(offer())
    exact = composed_epsilon([offer().mu] * 2, 1e-5)
    assert exact < 2.25
    assert codes(Policy(total_epsilon=exact), others) == []
    assert codes(Policy(total_epsilon=exact * (1 - 1e-9)), others) == ["total-epsilon-exceeded"]


def test_a_client_that_is_never_drawn_takes_nothing_of_the_total() -> None:
    assert codes(Policy(total_epsilon=0.0, total_delta=1e-300), participations=0) == []


def test_all_objections_are_named_at_once() -> None:
    assert len(codes(Policy(max_epsilon=1.0, max_delta=1e-9, total_epsilon=1.0))) == 3


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        'max_epsilon = 2\ntotal_epsilon = 5.0\ntotal_delta = 1e-4\ncheck_loss_weight = false\nadjacency = "replace"\n'
    )
    assert Policy.load(path) == Policy(
        max_epsilon=2, total_epsilon=5.0, total_delta=1e-4, check_loss_weight=False, adjacency=("replace",)
    )


def test_left_to_itself_a_client_checks_the_loss_weight() -> None:
    assert Policy.from_dict({}).check_loss_weight


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("max_epsilom = 2", "max_epsilom"),
        ("max_epsilon = -1", "max_epsilon"),
        ("max_epsilon = nan", "max_epsilon"),
        ("max_epsilon = inf", "max_epsilon"),
        ("max_epsilon = '2'", "max_epsilon"),
        ("max_epsilon = true", "max_epsilon"),
        ("total_delta = -1e-5", "total_delta"),
        ("total_delta = 0", "total_delta"),
        ("total_delta = 1", "total_delta"),
        ("max_draws = 1e5", "max_draws"),
        ("max_stored_bytes = -1", "max_stored_bytes"),
        ("complete_information = 1", "complete_information"),
        ("max_campaigns = 2.5", "max_campaigns"),
        ("max_campaigns = -1", "max_campaigns"),
        ("max_campaigns = true", "max_campaigns"),
        ("check_loss_weight = 0", "check_loss_weight"),
        ("adjacency = []", "adjacency"),
        ("adjacency = 3", "adjacency"),
        ("adjacency = ['both']", "adjacency"),
        ("max_epsilon", "TOML"),
        ("\xff", "TOML"),
    ],
)
def test_a_mistake_in_the_file_is_an_error_not_a_missing_limit(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=word) as caught:
        Policy.load(path)
    assert "policy.toml" in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Policy.load(tmp_path / "policy.toml")
