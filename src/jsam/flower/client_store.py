"""One campaign in a client's folder: the accepted terms, the ledger of releases, and the replies that were given.

published.json       the rules, as they were heard before the report
offers.json          every offer that was judged, and what was said to it
terms.json           what was accepted; its presence makes the campaign known
releases.jsonl       a `jsam.privacy.Ledger`: every release, before anything of it is computed
replies/7.model      digest of the model that round 7 was first asked for with; before the release is recorded
replies/7.bin        the reply of round 7, whole or absent
replies/7.sha256     its digest; only once this is on disk may the reply leave
closed               present once the campaign is over
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from jsam.errors import JsamError
from jsam.flower.refusal import Reason, Refused
from jsam.flower.terms import Terms
from jsam.privacy import Ledger, Release, read_ledger
from jsam.privacy.files import make_folder, sync_folder, write_atomically


class DamagedError(JsamError):
    """The books are not as they were left. Nothing may be released on their strength."""


class CampaignStore:
    """Files of one campaign. Writing methods are for whoever holds the client's lock; reading is safe at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._terms, self._releases, self._replies = (
            folder / "terms.json",
            folder / "releases.jsonl",
            folder / "replies",
        )

    @classmethod
    def of(cls, root: Path, campaign: str) -> CampaignStore:
        """A server chooses campaign names, so a name is never a path: its hash is."""
        return cls(root / hashlib.sha256(campaign.encode(errors="surrogatepass")).hexdigest()[:32])

    @staticmethod
    def heard_in(root: Path) -> int:
        """How many campaigns have left anything here, agreed to or not."""
        try:
            return sum(1 for _ in root.iterdir())
        except FileNotFoundError:
            return 0

    @classmethod
    def all_in(cls, root: Path) -> list[CampaignStore]:
        try:
            found = [cls(folder) for folder in sorted(root.iterdir())]
        except FileNotFoundError:
            return []
        return [store for store in found if store.known]

    @property
    def known(self) -> bool:
        return self._terms.exists()

    @property
    def closed(self) -> bool:
        return (self.folder / "closed").exists()

    @property
    def published(self) -> str | None:
        try:
            return (self.folder / "published.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def keep_published(self, text: str) -> None:
        make_folder(self.folder)
        write_atomically(self.folder / "published.json", text.encode())

    def offers(self) -> dict[str, Refused | None]:
        """Offers that were judged, by digest: the refusal, or None for a yes and for one that a kill left undecided."""
        try:
            stored = json.loads((self.folder / "offers.json").read_bytes())
            return {
                mark: None if verdict is None else Refused(Reason(verdict["refused"]), str(verdict["text"]))
                for mark, verdict in stored.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{self.folder / 'offers.json'} was changed") from error

    def note_offer(self, mark: str, refusal: Refused | None) -> None:
        make_folder(self.folder)
        stored = {
            known: None if verdict is None else {"refused": verdict.code.value, "text": verdict.text}
            for known, verdict in {**self.offers(), mark: refusal}.items()
        }
        write_atomically(self.folder / "offers.json", json.dumps(stored, indent=1).encode())

    @property
    def terms(self) -> Terms:
        terms = Terms.load(self._terms)
        if terms.hash != terms.digest:
            raise DamagedError(f"{self._terms} was changed: its hash does not fit its content")
        return terms

    def accept(self, terms: Terms) -> None:
        """The terms last: a campaign that is known has all its files, unless somebody removed them."""
        make_folder(self.folder)
        make_folder(self._replies)
        # All the way out of the client's folder: an earlier process may have died between making and flushing one.
        for folder in (self._replies, self.folder, *self.folder.parents[:3]):
            sync_folder(folder)
        with Ledger(self._releases):
            pass
        terms.save(self._terms)

    def releases(self) -> tuple[Release, ...]:
        """All that is recorded; a reply without a record means that the ledger was cut or set back."""
        answered = {path.stem for path in self._replies.glob("*.sha256")}
        # In this order: a round that is being answered meanwhile is recorded before its digest appears.
        releases = read_ledger(self._releases)
        if answered - {str(release.round) for release in releases}:
            raise DamagedError(f"{self._releases} lacks rounds that were answered; restore nothing from copies")
        return releases

    def record(self, release: Release) -> None:
        """On disk when this returns; the same release again changes nothing."""
        if not self._releases.exists():
            raise DamagedError(f"{self._releases} is gone; without it nobody knows what was spent")
        with Ledger(self._releases) as ledger:
            ledger.append([release])

    def model(self, round: int) -> str | None:
        """The digest of the model to which this round is bound."""
        try:
            return self._model(round).read_text(encoding="ascii")
        except FileNotFoundError:
            return None

    def bind(self, round: int, model: str) -> None:
        write_atomically(self._model(round), model.encode("ascii"))

    def answered(self, round: int) -> bool:
        """Whether the reply of this round may have left the machine."""
        return self._digest(round).exists()

    def answered_draws(self, releases: Iterable[Release]) -> int:
        return sum(release.multiplicity for release in releases if self.answered(release.round))

    def reply(self, round: int) -> bytes | None:
        """The stored reply, and None if there is none that may have left."""
        try:
            stored = self._reply(round).read_bytes()
        except FileNotFoundError:
            if self.answered(round):
                raise DamagedError(f"{self._reply(round)} is gone though it was given out") from None
            return None
        if self.answered(round) and self._digest(round).read_text() != hashlib.sha256(stored).hexdigest():
            raise DamagedError(f"{self._reply(round)} is not the reply that was given out")
        return stored

    def keep(self, round: int, reply: bytes) -> None:
        """First the reply, then its digest: after this it may leave, and no other of this round ever may."""
        if self.answered(round):
            # Also a repeated answer leaves only if a power cut cannot take its digest away.
            sync_folder(self._replies)
            return
        if not self._reply(round).exists():
            write_atomically(self._reply(round), reply)
        write_atomically(self._digest(round), hashlib.sha256(reply).hexdigest().encode())

    def close(self) -> None:
        """No more releases; stored replies are dropped, since nobody may ask for them again."""
        make_folder(self.folder)
        write_atomically(self.folder / "closed", b"")
        for path in self._replies.glob("*.bin"):
            path.unlink(missing_ok=True)

    def _model(self, round: int) -> Path:
        return self._replies / f"{round}.model"

    def _reply(self, round: int) -> Path:
        return self._replies / f"{round}.bin"

    def _digest(self, round: int) -> Path:
        return self._replies / f"{round}.sha256"
