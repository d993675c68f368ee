"""A client checks its offer alone, with its own installation: what follows from the terms is derived again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from jsam.campaign.terms import PAID_BY_EPSILON, Terms
from jsam.errors import InputError, JsamError
from jsam.privacy import epsilon_of, noise_multiplier

# Products of a few floats agree to this (relative), whatever the machine; the promise itself is judged without it.
ROUNDING = 1e-9
LOSS_WEIGHT = "loss weight"
# Gradients are clipped in fp32. Far outside of these bounds squares vanish or overflow, and then C bounds nothing.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-6, 1e6


class Status(StrEnum):
    PASSED = "passed"
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    status: Status
    message: str


def verify(terms: Terms, sensitivity: float | None = None, samples: int | None = None) -> tuple[Check, ...]:
    """Hold the terms against themselves, and against the client's own sensitivity and number of records where given."""
    if sensitivity is not None and not (math.isfinite(sensitivity) and sensitivity >= 0):
        raise InputError(f"sensitivity is {sensitivity:g}; it must be finite and at least 0")
    return (
        _hash(terms),
        _clip_norm(terms),
        *_noise(terms),
        _draws(terms),
        _delta(terms),
        _cap(terms),
        _samples(terms, samples),
        *_sizes(terms),
        _payment(terms, sensitivity),
        _drop_out(terms),
    )


def check_loss_weight(terms: Terms) -> Check:
    """Whether the loss weight is the one that the budget gives for N clients, by the own computation.

    What goes in here is a server's choice and may take for ever: see `jsam.campaign.sandboxed_check`.
    """
    from jsam.mechanism.budget.budget_cache import VERSION
    from jsam.mechanism.budget.loss_weight import loss_weight_fits_budget

    public, rules = terms.public, terms.public.rules
    if rules.budget is None:
        return _check(LOSS_WEIGHT, True, f"the constant {public.loss_weight:g}, no budget")
    if rules.spends_budget:
        return _check(LOSS_WEIGHT, True, f"{rules.mechanism} divides the budget after the reports and needs none")
    if rules.past_reports is not None:
        # It would name a file, and a server must not choose which of a client's files are read.
        return loss_weight_unchecked("the prior is in a file, which the terms do not hold")
    try:
        good = loss_weight_fits_budget(
            rules.mechanism_at(1.0),
            rules.budget,
            public.loss_weight,
            prior=rules.prior_of_all(),
            num_clients=public.num_clients,
            probability=rules.budget_probability,
            samples=public.sizes,
            seed=rules.seed,
        )
    except InputError as error:
        return _check(LOSS_WEIGHT, False, f"it cannot be computed from the public inputs: {error}")
    message = f"{public.loss_weight:.9g} {'is' if good else 'is not'} what a budget of {rules.budget:g} gives for"
    who = f"{public.num_clients} clients{'' if public.sizes is None else ' of these sizes'}"
    # Versions before 3 of the method took the mean over a sample for the expected cost, and found another η.
    method = "" if good else f" by method {VERSION}, which server and client must share"
    return _check(LOSS_WEIGHT, good, f"{message} {who}{method}")


def loss_weight_unchecked(why: str) -> Check:
    return Check(name=LOSS_WEIGHT, status=Status.NOT_CHECKED, message=why)


def _hash(terms: Terms) -> Check:
    good = terms.hash == terms.digest
    return _check("hash", good, "fits the content" if good else f"is {terms.hash[:64]}; the content has {terms.digest}")


def clip_norm_can_be_held(clip_norm: float) -> bool:
    return SMALLEST_CLIP_NORM <= clip_norm <= LARGEST_CLIP_NORM


def _clip_norm(terms: Terms) -> Check:
    good = clip_norm_can_be_held(terms.clip_norm)
    words = f"{'lies' if good else 'does not lie'} from {SMALLEST_CLIP_NORM:g} to {LARGEST_CLIP_NORM:g}"
    return _check("clip norm", good, f"{terms.clip_norm:g} {words}, where fp32 can hold it")


def _noise(terms: Terms) -> Iterator[Check]:
    if terms.participations == 0:
        yield Check(name="noise", status=Status.PASSED, message="never drawn: nothing is released, no noise is needed")
        return
    unit = terms.clip_norm / terms.samples
    good = math.isclose(terms.noise_std, terms.noise_multiplier * unit, rel_tol=ROUNDING)
    yield _check(
        "noise std",
        good,
        f"a draw's is {terms.noise_std:.9g}; multiplier × clip norm ÷ samples is {terms.noise_multiplier * unit:.9g}",
    )
    if terms.epsilon == 0:
        yield _check("noise", False, f"no ε is bought for {terms.participations} draws; they need some")
        return
    # The accountant, not the calibration, has the last word: what these draws cost with this noise, rounded up.
    spent = float(epsilon_of(terms.mu, terms.delta)) if math.isfinite(terms.mu) else math.inf
    try:
        multiplier = noise_multiplier(terms.epsilon, terms.delta, terms.participations, adjacency=terms.adjacency)
    except JsamError:
        yield _check("noise", False, f"none can be derived for ε = {terms.epsilon:g} and δ = {terms.delta:g}")
        return
    yield _check(
        "noise",
        spent <= terms.epsilon,
        f"all {terms.participations} draws spend ε = {spent:.9g} of {terms.epsilon:.9g}; "
        f"a draw's std is {terms.noise_std:.9g}, needed {float(multiplier) * unit:.9g}",
    )


def _draws(terms: Terms) -> Check:
    slots = terms.public.rounds * terms.public.per_round
    return _check(
        "participations",
        terms.participations <= slots,
        f"{terms.participations} draws; {terms.public.rounds} rounds of {terms.public.per_round} have {slots}",
    )


def _delta(terms: Terms) -> Check:
    good = terms.participations == 0 or terms.delta < 1 / terms.samples
    # From 1/M on, publishing one of the M records, picked at random, would count as private.
    words = "below" if good else "not below"
    return _check("delta", good, f"{terms.delta:g} is {words} 1 ÷ samples = {1 / terms.samples:.3g}")


def _cap(terms: Terms) -> Check:
    cap = terms.public.rules.max_epsilon
    if cap is None:
        return Check(name="epsilon cap", status=Status.PASSED, message="the campaign has none")
    good = terms.epsilon <= cap * (1 + ROUNDING)
    return _check("epsilon cap", good, f"ε is {terms.epsilon:.9g}; the campaign's cap is {cap:g}")


def _samples(terms: Terms, own: int | None) -> Check:
    if own is None:
        return Check(name="samples", status=Status.NOT_CHECKED, message="the own number of records was not given")
    return _check("samples", terms.samples == own, f"{terms.samples} in the terms, {own} own records")


def _sizes(terms: Terms) -> Iterator[Check]:
    """Where the plan counts sizes, the own one must be among them: all contracts follow from this list."""
    sizes = terms.public.sizes
    if sizes is None:
        return
    good = terms.samples in sizes
    words = f"{terms.samples} records are {'among' if good else 'not among'} the sizes of the {len(sizes)} clients"
    yield _check("sizes", good, f"{words} by which the campaign plans")


def _payment(terms: Terms, sensitivity: float | None) -> Check:
    if sensitivity is None:
        return Check(name="payment", status=Status.NOT_CHECKED, message="the own sensitivity was not given")
    cost = sensitivity * terms.epsilon
    good = terms.payment >= cost * (1 - ROUNDING)
    return _check("payment", good, f"{terms.payment:.9g} is offered; sensitivity × ε is {cost:.9g}")


def _drop_out(terms: Terms) -> Check:
    good = terms.drop_out_rule == PAID_BY_EPSILON
    words = "pays at least the share of ε that was spent" if good else "may pay less than the share of ε that was spent"
    return _check("drop-out rule", good, f"{terms.drop_out_rule} {words}")


def _check(name: str, good: bool, message: str) -> Check:
    return Check(name=name, status=Status.PASSED if good else Status.VIOLATED, message=message)
