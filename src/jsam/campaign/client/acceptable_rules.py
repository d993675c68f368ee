"""Whether a client reports its sensitivity under published rules at all: only if it might accept what follows.

A report is an answer that no noise protects. Under rules that the client could not read, or whose every offer it would
decline, it would be given away for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.sandboxed_check import prior_support_apart
from jsam.errors import InputError

_UNREADABLE = "the published rules cannot be read here"


def prior_support(rules: CampaignRules, knows_model: Callable[[str], bool] | None = None) -> tuple[float, float]:
    """The support of the prior; `Refused` if prior or model are not known here. The server wrote them, so it is named.

    The prior is computed in a process of its own: its name and its numbers are the server's choice.
    """
    if knows_model is not None and not knows_model(rules.model):
        raise Refused(Reason.RULES_UNREADABLE, f"{_UNREADABLE}: model")
    try:
        return prior_support_apart(str(rules.rules.prior))
    except InputError as error:
        raise Refused(Reason.RULES_UNREADABLE, f"{_UNREADABLE}: prior") from error


def judge_rules(
    rules: CampaignRules,
    support: tuple[float, float],
    policy: Policy,
    *,
    sensitivity: float | None = None,
    samples: int | None = None,
) -> Refused | None:
    """The refusal, in words that do not say why, if the client would accept nothing under these rules."""
    training = rules.training
    objections = policy.judge_rules(rules.rules.mechanism, training.delta, training.adjacency, samples)
    reasons = [objection.text for objection in objections]
    if sensitivity is not None and not support[0] <= sensitivity <= support[1]:
        reasons.append(f"the own sensitivity is outside the prior's support [{support[0]:g}, {support[1]:g}]")
    if not reasons:
        return None
    refusal = Refused(Reason.RULES_UNACCEPTABLE, "this client would accept nothing under the published rules")
    refusal.__cause__ = InputError("; ".join(reasons))
    return refusal
