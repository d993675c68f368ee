"""Whether a client reports its sensitivity under published rules at all: only if it might accept what follows.

A report is an answer that no noise protects. Under rules that the client could not read, or whose every offer it would
decline, it would be given away for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from jsam.campaign.announcement import Announcement
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.rule import published_rule
from jsam.campaign.sandboxed_check import prior_support_apart
from jsam.campaign.terms import PublicInputs
from jsam.campaign.verification import clip_norm_can_be_held
from jsam.errors import InputError
from jsam.privacy import Adjacency


def read_rules(announcement: Announcement, knows_model: Callable[[str], bool] | None = None) -> tuple[float, float]:
    """The support of the prior; `Refused` if a part of the rules cannot be read. The server wrote it, so it is named.

    The prior is computed in a process of its own: its name and its numbers are the server's choice.
    """
    values, part = announcement.values, "the numbers"
    try:
        given = {name: values[name] for field in fields(PublicInputs) if (name := field.name) in values}
        given |= {"num_clients": 1, "loss_weight": 1.0 if values["loss_weight"] is None else values["loss_weight"]}
        public = PublicInputs(**{**given, "budget_seed": values.get("seed", 0)})  # type: ignore[arg-type]  # checked there
        delta, clip_norm = values["delta"], values["clip_norm"]
        for number in (delta, clip_norm):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise InputError(f"{number!r} is no number")
        if not (0 < delta < 1 and clip_norm_can_be_held(clip_norm)):  # type: ignore[operator, arg-type]  # numbers by now
            raise InputError(f"delta is {delta} and clip_norm is {clip_norm}")
        part = "adjacency"
        Adjacency.of(str(values["adjacency"]))
        part = "mechanism"
        published_rule(public, public.loss_weight)
        part = "model"
        if knows_model is not None and not knows_model(public.model):
            raise InputError(f"model {public.model} is not installed")
        part = "prior"
        return prior_support_apart(public.prior)
    except InputError as error:
        raise Refused(Reason.RULES_UNREADABLE, f"the published rules cannot be read here: {part}") from error


def judge_rules(
    announcement: Announcement,
    support: tuple[float, float],
    policy: Policy,
    *,
    sensitivity: float | None = None,
    samples: int | None = None,
) -> Refused | None:
    """The refusal, in words that do not say why, if the client would accept nothing under these rules."""
    values = announcement.values
    objections = policy.judge_rules(
        str(values["mechanism"]), float(str(values["delta"])), str(values["adjacency"]), samples
    )
    reasons = [objection.text for objection in objections]
    if sensitivity is not None and not support[0] <= sensitivity <= support[1]:
        reasons.append(f"the own sensitivity is outside the prior's support [{support[0]:g}, {support[1]:g}]")
    if not reasons:
        return None
    refusal = Refused(Reason.RULES_UNACCEPTABLE, "this client would accept nothing under the published rules")
    refusal.__cause__ = InputError("; ".join(reasons))
    return refusal
