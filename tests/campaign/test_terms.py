"""Terms travel as JSON without loss, and their hash covers every field."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsam.campaign.statement import NOTHING, Total
from jsam.campaign.terms import Terms
from jsam.errors import InputError
from jsam.privacy import noise_multiplier, spent_epsilons, spent_mus
from tests.campaign.offers import forged, offer, public_inputs

OTHER_VALUES: dict[str, Any] = {
    "campaign": "autumn",
    "client": "hospital-b",
    "epsilon": 1.6,
    "delta": 2e-5,
    "participations": 4,
    "noise_multiplier": 9.0,
    "noise_std": 9.0,
    "clip_norm": 3.0,
    "samples": 601,
    "adjacency": "replace",
    "payment": 0.9,
    "public": public_inputs(rounds=7),
}
OTHER_PUBLIC: dict[str, Any] = {
    "prior": "beta:2,5",
    "mechanism": "usbm",
    "num_clients": 4,
    "loss_weight": 6.0,
    "budget": 10.0,
    "budget_probability": 0.9,
    "budget_seed": 1,
    "noise_weight": 2.0,
    "bias_weight": 2.0,
    "max_selection_prob": 0.5,
    "max_epsilon": 3.0,
    "rounds": 7,
    "per_round": 5,
    "learning_rate": 0.2,
    "model": "other",
    "precision": "bfloat16",
}


def test_the_offer_has_exactly_the_noise_of_its_epsilon_and_draws() -> None:
    terms = offer()
    assert terms.noise_multiplier == noise_multiplier(1.5, 1e-5, 5)
    assert terms.noise_std == pytest.approx(terms.noise_multiplier * 2.0 / 600, rel=1e-15)


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_the_hash_covers_every_field(field: str) -> None:
    assert set(OTHER_VALUES) == {entry.name for entry in dataclasses.fields(Terms)} - {"hash", "drop_out_rule"}
    assert forged(offer(), **{field: OTHER_VALUES[field]}).hash != offer().hash


@pytest.mark.parametrize("field", OTHER_PUBLIC)
def test_the_hash_covers_every_public_input(field: str) -> None:
    assert set(OTHER_PUBLIC) == public_inputs().as_dict().keys()
    before = {"budget": 12.0} if field == "budget_probability" else {}  # it needs one
    assert (
        offer(public=public_inputs(**{**before, field: OTHER_PUBLIC[field]})).hash
        != offer(public=public_inputs(**before)).hash
    )


def test_the_hash_does_not_depend_on_how_a_number_is_written() -> None:
    assert offer(epsilon=2, clip_norm=1, payment=0).hash == offer(epsilon=2.0, clip_norm=1.0, payment=-0.0).hash


@given(
    epsilon=st.floats(1e-3, 1e3),
    payment=st.floats(0, 1e6),
    participations=st.integers(0, 24),
    client=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
    adjacency=st.sampled_from(["add-remove", "replace"]),
)
def test_json_gives_back_the_same_terms(**changes: Any) -> None:
    terms = offer(**changes)
    again = Terms.from_json(terms.to_json())
    assert again == terms
    assert again.hash == again.digest


def test_a_file_gives_back_the_same_terms(tmp_path: Path) -> None:
    (tmp_path / "terms.json").write_text(offer().to_json())
    assert Terms.load(tmp_path / "terms.json") == offer()


def test_a_claimed_hash_is_kept_for_verification_to_find() -> None:
    stored = {**offer().as_dict(), "epsilon": 3.0}
    terms = Terms.from_dict(stored)
    assert terms.hash == offer().hash != terms.digest


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 10**400}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"epsilon": True}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"participations": 1.0}, "participations"),
        ({"participations": -1}, "participations"),
        ({"participations": 2**63}, "participations"),
        ({"samples": 0}, "samples"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"noise_std": -0.1}, "noise_std"),
        ({"adjacency": "sometimes"}, "adjacency"),
        ({"adjacency": ["replace"]}, "adjacency"),
        ({"drop_out_rule": "nothing"}, "drop_out_rule"),
        ({"campaign": ""}, "campaign"),
        ({"campaign": "a\nb"}, "campaign"),
        ({"client": "x" * 1000}, "client"),
        ({"hash": 5}, "hash"),
        ({"hash": ""}, "hash"),
        ({"public": None}, "public"),
        ({"public": {"prior": "uniform:0,1"}}, "public"),
        ({"more": 1}, "more"),
        ({"jsam_terms": 99}, "jsam_terms"),
    ],
)
def test_what_is_no_terms_is_refused_by_name(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Terms.from_dict({**offer().as_dict(), **changes})


@pytest.mark.parametrize("text", ["", "[]", "7", '{"jsam_terms": 1}', "[" * 100_000, "{" + " " * 2_000_000 + "}"])
def test_text_that_is_no_terms_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="terms"):
        Terms.from_json(text)


def test_a_file_that_is_not_there_or_not_terms_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.json cannot be read"):
        Terms.load(tmp_path / "nowhere.json")
    (tmp_path / "list.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match=r"list.json"):
        Terms.load(tmp_path / "list.json")


@pytest.mark.parametrize("multiplicities", [[5], [1, 1, 1, 1, 1], [2, 3]])
def test_all_draws_together_have_the_mu_of_the_terms_however_they_fall_into_rounds(multiplicities: list[int]) -> None:
    terms = offer()
    releases = [terms.release(round, m) for round, m in enumerate(multiplicities)]
    assert spent_mus(releases)[terms.client] == pytest.approx(terms.mu, rel=1e-12)


def test_a_drop_out_is_paid_by_the_share_of_epsilon_that_it_spent() -> None:
    terms = offer()
    spent = spent_epsilons([terms.release(0, 2), terms.release(1, 1)], terms.delta)[terms.client]
    assert terms.payment_for(3) == pytest.approx(terms.payment * spent / terms.epsilon, rel=1e-5)
    assert terms.payment_for(3) >= terms.payment * spent / terms.epsilon
    assert terms.payment_for(0) == 0
    assert terms.payment_for(5) == terms.payment


def test_a_client_that_is_never_drawn_is_paid_in_full_and_risks_nothing() -> None:
    terms = offer(participations=0)
    assert (terms.noise_std, terms.mu) == (0.0, 0.0)
    assert Total.of_terms(terms) == NOTHING
    assert terms.payment_for(0) == terms.payment


def test_an_offer_for_no_records_is_refused() -> None:
    with pytest.raises(InputError, match="samples"):
        offer(samples=0)
