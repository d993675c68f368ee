"""What a client must keep to answer for its whole life, wherever it keeps it: a folder, or tables.

Whatever a method stores is stored for good when it returns. `ClientFolder` does this with files in a folder.
`ClientLedger` decides what is stored, and when; it knows of these protocols alone.

Every method may raise `JsamError` or `OSError` if the books cannot be read or written, and `DamagedError` if they are
not as they were left. None of these texts leaves the machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.terms import Terms
from jsam.errors import JsamError
from jsam.privacy import Release

# The mark under which the offers have what was said to the published rules.
RULES = "rules"


class DamagedError(JsamError):
    """The books are not as they were left. Nothing may be released on their strength."""


class CampaignRecords(Protocol):
    """One campaign in a client's books. Methods that store something are for whoever is in `writing`."""

    @property
    def where(self) -> str:
        """Where the records are, for messages on this machine."""

    @property
    def published(self) -> str | None:
        """The text of the rules that were heard first; None if none were."""

    def keep_published(self, text: str, refusal: Refused | None) -> None:
        """Store the rules, and in the same step, under `RULES` of the offers, the refusal if they were refused."""

    def offers(self) -> Mapping[str, Refused | None]:
        """What was said to each offer, by its mark: the refusal, or None for a yes and for one left undecided."""

    def note_offer(self, mark: str, refusal: Refused | None) -> None:
        """Store what was said to an offer, in place of what was noted for this mark before."""

    @property
    def known(self) -> bool:
        """Whether terms were accepted."""

    @property
    def terms(self) -> Terms:
        """The terms that were accepted last; asked for only if there are some."""

    def accept(self, terms: Terms) -> None:
        """Store accepted terms, in place of earlier ones."""

    def releases(self) -> Sequence[Release]:
        """All recorded releases, in the order in which they were recorded."""

    def record(self, release: Release, model: str) -> None:
        """Store a release, and in the same step the digest of the model to which its round is bound."""

    def model(self, round: int) -> str | None:
        """The digest of the model to which this round is bound; None if the round was not recorded."""

    def reply(self, round: int) -> bytes | None:
        """The stored reply, also one of which a kill left only the bytes; None if nothing of this round was given out.

        It raises `DamagedError` if the reply was given out and is not stored any more, or not as it was.
        """

    def keep(self, round: int, reply: bytes) -> None:
        """Store a reply, which may leave once this has returned. A round that has one keeps it."""

    def answered(self, round: int) -> bool:
        """Whether the reply of this round may have left the machine; this stays so when its bytes are dropped."""

    def replies_size(self) -> int:
        """The bytes of stored replies."""

    def drop_replies(self, most: int) -> None:
        """Drop stored replies, the oldest round first and never the last one, until they have at most so many bytes."""

    @property
    def closed(self) -> bool:
        """Whether the campaign is over."""

    def close(self) -> None:
        """End the campaign and drop its stored replies."""


class OpenBooks(Protocol):
    """A client's books at one moment."""

    def campaign(self, name: str) -> CampaignRecords:
        """The records of the campaign that servers call by this name; empty ones if nothing was heard of it.

        A server chose the name, so it is neither a path nor a query.
        """

    def campaigns(self) -> Sequence[CampaignRecords]:
        """Every campaign of which something is stored, in an order that stays."""


class ClientStorage(Protocol):
    """All books of one client."""

    def writing(self, wait: float) -> AbstractContextManager[OpenBooks]:
        """The books, checked, and closed to every other process until the end, which a kill must bring about too.

        It raises `Refused` with `Reason.BUSY` if another process still has them after `wait` seconds.
        """

    def reading(self, *, thorough: bool = False) -> OpenBooks:
        """The books, checked, while another process may write; `thorough` checks also what is costly to check."""

    @property
    def paused(self) -> bool:
        """Whether the client's owner wants no request answered for now."""

    def pause(self, on: bool) -> None:
        """Store whether no request shall be answered."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the books name files; what leaves must not."""
    try:
        yield
    except Refused:
        raise
    except (JsamError, OSError) as error:
        raise Refused(
            Reason.LEDGER_FAILED, "the client's books cannot be read or written; nothing is released"
        ) from error
