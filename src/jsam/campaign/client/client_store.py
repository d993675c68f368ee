"""One campaign in a client's books: the accepted terms, the releases, and the replies that were given.

published.json       the rules, as they were heard before the report
offers.json          every offer that was judged, and what was said to it
terms.json           what was accepted; its presence makes the campaign known
releases.jsonl       a `jsam.privacy.Ledger`: every release, before anything of it is computed
replies/7.model      digest of the model that round 7 was first asked for with; recorded with the release
replies/7.bin        the reply of round 7, whole or absent
replies/7.sha256     its digest; only once this is on disk may the reply leave
closed               present once the campaign is over

All but the replies themselves are entries of the client's journal, which is checked against these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from jsam.campaign.client.client_journal import REPLIES, TERMS, Journal, Kept
from jsam.campaign.client.client_storage import RULES, DamagedError
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.terms import Terms
from jsam.files import sync_folder, write_atomically
from jsam.privacy import Release


def campaign_id(campaign: str) -> str:
    """A server chooses campaign names, so a name is never a path: its hash is."""
    return hashlib.sha256(campaign.encode(errors="surrogatepass")).hexdigest()[:32]


class CampaignStore:
    """One campaign of a journal: `CampaignRecords` by files."""

    def __init__(self, journal: Journal, name: str) -> None:
        """`name` is the campaign's id in the journal."""
        self._journal, self._id = journal, name
        self.folder = journal.path(name)
        self._replies = self.folder / REPLIES

    @classmethod
    def of(cls, journal: Journal, campaign: str) -> CampaignStore:
        return cls(journal, campaign_id(campaign))

    @property
    def where(self) -> str:
        return str(self.folder)

    @property
    def _kept(self) -> Kept:
        return self._journal.kept(self._id)

    @property
    def known(self) -> bool:
        return TERMS in self._kept.files

    @property
    def closed(self) -> bool:
        return "closed" in self._kept.files

    @property
    def published(self) -> str | None:
        return self._kept.files.get("published.json")

    def keep_published(self, text: str, refusal: Refused | None) -> None:
        """The rules, and what was said to them if that was a no."""
        files = {"published.json": text}
        if refusal is not None:
            files["offers.json"] = _verdicts({**self.offers(), RULES: refusal})
        self._journal.enter(self._id, files)

    def offers(self) -> dict[str, Refused | None]:
        """Offers that were judged, by digest: the refusal, or None for a yes and for one that a kill left undecided.

        Under `RULES` is what was said to the published rules, if that was a no.
        """
        text = self._kept.files.get("offers.json")
        try:
            return {
                mark: None if verdict is None else Refused(Reason(verdict["refused"]), str(verdict["text"]))
                for mark, verdict in ({} if text is None else json.loads(text)).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{self.folder / 'offers.json'} was changed") from error

    def note_offer(self, mark: str, refusal: Refused | None) -> None:
        self._journal.enter(self._id, {"offers.json": _verdicts({**self.offers(), mark: refusal})})

    @property
    def terms(self) -> Terms:
        terms = Terms.from_json(self._kept.files[TERMS])
        if terms.hash != terms.digest:
            raise DamagedError(f"{self.folder / TERMS} was changed: its hash does not fit its content")
        return terms

    def accept(self, terms: Terms) -> None:
        self._journal.enter(self._id, {TERMS: terms.to_json()})

    def releases(self) -> tuple[Release, ...]:
        return tuple(self._kept.releases)

    def record(self, release: Release, model: str) -> None:
        """The release, and the model to which its round is bound from now on; on disk when this returns."""
        self._journal.enter(self._id, {f"{REPLIES}/{release.round}.model": model}, release)

    def model(self, round: int) -> str | None:
        """The digest of the model to which this round is bound."""
        return self._kept.files.get(f"{REPLIES}/{round}.model")

    def answered(self, round: int) -> bool:
        """Whether the reply of this round may have left the machine."""
        return self._digest(round) in self._kept.files

    def reply(self, round: int) -> bytes | None:
        """The stored reply, and None if there is none that may have left."""
        digest = self._kept.files.get(self._digest(round))
        try:
            stored = self._reply(round).read_bytes()
        except FileNotFoundError:
            if digest is not None:
                raise DamagedError(f"{self._reply(round)} is gone though it was given out") from None
            return None
        if digest is not None and digest != hashlib.sha256(stored).hexdigest():
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
        self._journal.enter(self._id, {self._digest(round): hashlib.sha256(reply).hexdigest()})

    def replies_size(self) -> int:
        """Bytes of stored replies."""
        return sum(path.stat().st_size for path in self._replies.glob("*.bin"))

    def drop_replies(self, most: int) -> None:
        """Drop stored replies, the oldest round first and never the last one, until they have at most so many bytes.

        A round whose reply was dropped is never answered again: its digest stays.
        """
        stored = sorted(self._replies.glob("*.bin"), key=lambda path: int(path.stem))
        size = sum(path.stat().st_size for path in stored)
        for path in stored[:-1]:
            if size <= most:
                return
            size -= path.stat().st_size
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """No more releases; stored replies are dropped, since nobody may ask for them again."""
        if not self.closed:
            self._journal.enter(self._id, {"closed": ""})
        for path in self._replies.glob("*.bin"):
            path.unlink(missing_ok=True)

    def _reply(self, round: int) -> Path:
        return self._replies / f"{round}.bin"

    @staticmethod
    def _digest(round: int) -> str:
        return f"{REPLIES}/{round}.sha256"


class JournalBooks:
    """All campaigns of a journal: `OpenBooks` by files."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def campaign(self, name: str) -> CampaignStore:
        return CampaignStore.of(self._journal, name)

    def campaigns(self) -> list[CampaignStore]:
        """Every campaign, in the order of the ids."""
        return [CampaignStore(self._journal, name) for name in sorted(self._journal.campaigns)]


def _verdicts(verdicts: Mapping[str, Refused | None]) -> str:
    stored = {
        mark: None if verdict is None else {"refused": verdict.code.value, "text": verdict.text}
        for mark, verdict in verdicts.items()
    }
    return json.dumps(stored, indent=1)
