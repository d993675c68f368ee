"""What clients answer, read in one place: nothing in a reply is trusted, and one kind of error says what is wrong.

Sizes, types and ranges are compared with what was asked before anything is decoded. An `UnusableError` costs the client
that sent the reply its place or its slot, under a named reason in the books, and nobody else anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.checked import ALLOWED, is_name
from jsam.campaign.messages import Encoded, Reply, Vector
from jsam.campaign.refusal import FAILED, Reason
from jsam.campaign.server.storage import Report
from jsam.campaign.terms import Terms
from jsam.errors import InputError, JsamError
from jsam.privacy import Release

# What the planner can compute with, whatever the prior allows; a report outside is as one outside the support.
SMALLEST_REPORT, LARGEST_REPORT = 1e-30, 1e30
MOST_SAMPLES = 10**12
_LONGEST_TEXT = 200
_REFUSALS = frozenset({FAILED, *(reason.value for reason in Reason)})
# What `np.save` writes before the numbers; only the room after the words differs between numpy's versions.
_MAGIC, _LONGEST_HEAD = b"\x93NUMPY\x01\x00", 1024
# A Gaussian vector is longer than its root dimension plus this many standard deviations in one of 10²¹ cases.
_ROOM = 10.0


class Flaw(StrEnum):
    """Why an answer cannot be used, as the books name it."""

    UNREADABLE = "answer-unreadable"
    NO_NAME = "name-not-allowed"
    NAME_TAKEN = "name-taken"
    BAD_REPORT = "report-not-usable"
    OTHER_SIZE = "records-not-as-known"
    NO_RELEASE = "release-missing"
    OTHER_REQUEST = "release-of-another-request"
    WRONG_FORM = "release-malformed"
    NOT_FINITE = "release-not-finite"
    TOO_LARGE = "release-too-large"


class UnusableError(JsamError):
    """An answer of which nothing is taken over; `flaw` goes into the books."""

    def __init__(self, flaw: Flaw, text: str) -> None:
        super().__init__(f"{flaw}: {text}")
        self.flaw = flaw


def name_in(reply: Reply) -> str:
    """The name that a client gives itself."""
    name = reply.values.get("client")
    if not isinstance(name, str) or not is_name(name):
        raise UnusableError(Flaw.NO_NAME, f"a name must have {ALLOWED}")
    return name


def checked_report(name: str, sensitivity: object, samples: object, rules: CampaignRules) -> Report:
    """The report, if a plan can be made with it: in the prior's support and in what can be computed with."""
    if not is_name(name):
        raise UnusableError(Flaw.NO_NAME, f"a name must have {ALLOWED}")
    if not isinstance(sensitivity, float) or not SMALLEST_REPORT <= sensitivity <= LARGEST_REPORT:
        allowed = f"a number from {SMALLEST_REPORT:g} to {LARGEST_REPORT:g}"
        raise UnusableError(Flaw.BAD_REPORT, f"the sensitivity must be {allowed}")
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples <= MOST_SAMPLES:
        raise UnusableError(Flaw.BAD_REPORT, f"the number of records must be a whole number from 1 to {MOST_SAMPLES}")
    try:
        rules.rules.market([sensitivity], [name])
    except InputError as error:
        raise UnusableError(Flaw.BAD_REPORT, "the sensitivity lies outside the prior's support") from error
    return Report(sensitivity=sensitivity, samples=samples)


def check_known_size(name: str, report: Report, known: Mapping[str, int] | None) -> None:
    """Refuse a number of records that is not the one that the operator knows of."""
    if known is not None and known.get(name) != report.samples:
        raise UnusableError(Flaw.OTHER_SIZE, "the number of records is not the one that the operator knows of")


def refusal_in(reply: Reply) -> str | None:
    """The reason for which a client refuses, of those that clients know; None if it does not refuse."""
    if "refused" not in reply.values:
        return None
    refused = reply.values["refused"]
    return refused if isinstance(refused, str) and refused in _REFUSALS else FAILED


def words_in(reply: Reply) -> str:
    """What a client says besides, short and printable."""
    text = reply.values.get("text", "")
    return plain(text) if isinstance(text, str) else ""


def plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_TEXT])


def answer_to_offer(reply: Reply, terms: Terms) -> str | None:
    """None for a yes to exactly these terms; else why not."""
    accepted = reply.values.get("accepted")
    if isinstance(accepted, str) and accepted == terms.hash:
        return None
    refused = refusal_in(reply)
    return str(Flaw.UNREADABLE) if refused is None else f"{refused}: {words_in(reply)}"


def release_in(reply: Reply, ask_id: str, size: int, release: Release) -> Vector:
    """The noisy mean in a reply to this request: `size` finite numbers that clipping and this noise can have made."""
    if not reply.readable:
        raise UnusableError(Flaw.UNREADABLE, "the reply cannot be read")
    if reply.values.get("ask_id") != ask_id:
        raise UnusableError(Flaw.OTHER_REQUEST, "the reply names another request")
    if reply.release is None:
        raise UnusableError(Flaw.NO_RELEASE, "the reply holds no release")
    vector = _decoded(reply.release, size)
    check_release(vector, size, release)
    return vector


def check_release(vector: NDArray[np.generic], size: int, release: Release) -> None:
    """Refuse, by `UnusableError`, numbers that no honest client sends."""
    if vector.shape != (size,) or vector.dtype != np.float32:
        raise UnusableError(Flaw.WRONG_FORM, f"the release must be {size} numbers of float32")
    if not bool(np.isfinite(vector).all()):
        raise UnusableError(Flaw.NOT_FINITE, "the release holds numbers that are not finite")
    # Longer than this, it could not have come from gradients clipped to C and noise of this scale.
    longest = 1.001 * (release.clip_norm + release.noise_std * (math.sqrt(size) + _ROOM))
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if length > longest:
        raise UnusableError(Flaw.TOO_LARGE, f"the release has the norm {length:.3g}, above {longest:.3g}")


def _decoded(sent: Encoded, size: int) -> Vector:
    """The numbers, if the bytes are exactly what `np.save` makes of so many of float32; no other reader is called."""
    data = sent.data
    said = sent.form == "numpy.ndarray" and sent.dtype == "float32" and sent.shape == (size,)
    if not said or not isinstance(data, bytes) or not len(_MAGIC) + 2 < len(data) - 4 * size <= _LONGEST_HEAD:
        raise UnusableError(Flaw.WRONG_FORM, f"the release must be {size} numbers of float32, as numpy saves them")
    head = len(data) - 4 * size
    words = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},), }}".encode()
    length = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
    whole = data.startswith(_MAGIC) and length == head - len(_MAGIC) - 2
    if not whole or data[len(_MAGIC) + 2 : head].strip() != words:
        raise UnusableError(Flaw.WRONG_FORM, "the release is not as numpy saves it")
    return np.frombuffer(data, dtype="<f4", offset=head).astype(np.float32)
