"""Why a client says no, in words that are safe to send: no numbers of its policy, no data, no paths."""

from __future__ import annotations

from enum import StrEnum

from jsam.errors import JsamError


class Reason(StrEnum):
    """The named reasons; a server sees these and nothing else of what the client thinks."""

    MALFORMED = "malformed"
    UNKNOWN_CAMPAIGN = "unknown-campaign"
    CAMPAIGN_CLOSED = "campaign-closed"
    OTHER_CONTRACT = "other-contract"
    OTHER_SETTINGS = "other-settings"
    ROUND_OUT_OF_RANGE = "round-out-of-range"
    OUT_OF_ORDER = "out-of-order"
    REPEAT_DIFFERS = "repeat-differs"
    OTHER_MODEL = "other-model"
    TOO_MANY_DRAWS = "too-many-draws"
    EPSILON_EXHAUSTED = "epsilon-exhausted"
    POLICY_TOTAL = "policy-total"
    RULES_CHANGED = "rules-changed"
    RULES_UNREADABLE = "unreadable-rules"
    RULES_UNACCEPTABLE = "unacceptable-rules"
    INVALID_TERMS = "invalid-terms"
    DECLINED = "declined"
    TOO_MANY_OFFERS = "too-many-offers"
    TOO_MANY_CAMPAIGNS = "too-many-campaigns"
    CONTRACT_IN_USE = "contract-in-use"
    REPLY_LOST = "reply-lost"
    NO_SPACE = "no-space"
    PAUSED = "paused"
    LEDGER_FAILED = "ledger-failed"
    BUSY = "busy"


# What a client says when it could not answer for a reason of its own, which it keeps to itself.
FAILED = "failed"


class Refused(JsamError):  # noqa: N818 - not an error of the program: the client's right
    """The client releases nothing. `code` and `text` may be sent; what caused it (`__cause__`) stays at home."""

    def __init__(self, code: Reason, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
