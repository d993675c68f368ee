"""The client's books as one chain of entries, over all campaigns, and the campaigns' files, which follow from it.

books.chain          every entry, chained by hashes (jsam.privacy.chain); the truth
books.head           how many there are, and the hash of the last
campaigns/ID/…       each campaign's files, as the entries say they are (jsam.campaign.client.client_store)

An entry says what a file holds from now on, or which release is recorded. It is on disk before its files are touched,
so at most the files of the last entry can be behind, after a kill; `finish` brings them up. Every other difference
between chain and files is no trace of a kill but damage: something was cut, edited, lost, or mixed up with other books.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsam.campaign.client.client_storage import DamagedError
from jsam.errors import InputError
from jsam.files import make_folder, sync_folder, write_atomically
from jsam.privacy import Ledger, Release, read_ledger
from jsam.privacy.chain import Chain

CHAIN, HEAD, ADOPTING, CAMPAIGNS = "books.chain", "books.head", "books.adopting", "campaigns"
TERMS, RELEASES, REPLIES = "terms.json", "releases.jsonl", "replies"
_CAMPAIGN = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"(published|offers|terms)\.json|closed|replies/[0-9]+\.(model|sha256)")
# Replies are too large for the chain, which holds their digests.
_REPLY = re.compile(r"replies/[0-9]+\.bin")
_READS = 50


@dataclass
class Kept:
    """One campaign as its entries say it is: texts by file, and the releases in order."""

    files: dict[str, str] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)

    def copy(self) -> Kept:
        return Kept(files=dict(self.files), releases=list(self.releases))


class Journal:
    """Entries by campaign; `enter` and `finish` are for whoever holds the client's lock."""

    def __init__(self, folder: Path) -> None:
        """Read the chain and check it; `checked` also holds the files against it."""
        self.folder = folder
        self._chain = Chain(folder / CHAIN, folder / HEAD)
        self.campaigns: dict[str, Kept] = {}
        # The campaign of the last entry as it was before: what a kill may have left of it.
        self._before: tuple[str, Kept] | None = None
        last = len(self._chain.records) - 1
        for number, record in enumerate(self._chain.records):
            campaign, files, release = _parsed(record, folder / CHAIN, number)
            if number == last:
                self._before = (campaign, self.kept(campaign).copy())
            self._take(campaign, files, release)

    @classmethod
    def checked(cls, folder: Path, *, digests: bool = False) -> Journal:
        """Chain and files agree, or `DamagedError` names what is wrong; safe while another process writes.

        `digests`: also compare the digests of models and replies, of which there is a file each for every round.
        Without it they must be there; what counts of them is what the chain says.
        """
        for _ in range(_READS):
            journal = cls(folder)
            try:
                journal.check_files(digests=digests)
                return journal
            except DamagedError:
                # Files that changed meanwhile may belong to a later entry; then the chain is longer, too.
                if cls(folder)._chain.last_hash == journal._chain.last_hash:
                    raise
        raise DamagedError(f"{folder} is being written too often to be read")

    def kept(self, campaign: str) -> Kept:
        return self.campaigns.get(campaign, Kept())

    def path(self, campaign: str) -> Path:
        return self.folder / CAMPAIGNS / campaign

    def enter(self, campaign: str, files: Mapping[str, str] | None = None, release: Release | None = None) -> None:
        """The entry first, then its files."""
        for name, text in (files or {}).items():
            _encoded(name, text)  # before the entry: what no file can hold must not be in the chain
        record: dict[str, Any] = {"campaign": campaign, "files": dict(files or {})}
        if release is not None:
            record["release"] = release.to_record()
        self._before = (campaign, self.kept(campaign).copy())
        self._chain.append(record)
        self._take(campaign, record["files"], release)
        self._apply(campaign, record["files"], release)

    def finish(self) -> None:
        """Bring the files of the last entry up, if a kill left them behind."""
        if self._chain.records:
            self._apply(*_parsed(self._chain.records[-1], self.folder / CHAIN, len(self._chain.records) - 1))

    def check_files(self, *, digests: bool = False) -> None:
        """Every file is what the entries say; those of the last one may be what they were before it."""
        root = self.folder / CAMPAIGNS
        if (self.folder / ADOPTING).exists():
            raise DamagedError(f"the books in {self.folder} are half adopted; adopt them again with --adopt-ledger")
        strangers = [path for path in _entries(root) if path.name not in self.campaigns and _holds_files(path)]
        if strangers and not self._chain.exists:
            raise DamagedError(
                f"{self.folder / CHAIN} is gone, or an earlier version of jsam made these books; if you know that they "
                "are whole, `jsam supernode CLIENT.toml --adopt-ledger` chains them"
            )
        if strangers:
            raise DamagedError(f"{strangers[0]} is no campaign of these books")
        for campaign, kept in self.campaigns.items():
            before = self._before[1] if self._before is not None and self._before[0] == campaign else kept
            _check(self.path(campaign), kept, before, digests=digests)

    def _take(self, campaign: str, files: Mapping[str, str], release: Release | None) -> None:
        kept = self.campaigns.setdefault(campaign, Kept())
        kept.files.update(files)
        if release is not None:
            kept.releases.append(release)

    def _apply(self, campaign: str, files: Mapping[str, str], release: Release | None) -> None:
        """The same entry again changes nothing."""
        folder = self.path(campaign)
        make_folder(folder)
        for name, text in files.items():
            if name == TERMS:
                make_folder(folder / REPLIES)
                # The folders above too: an earlier process may have died between making one and flushing it.
                for made in (folder / REPLIES, folder, *folder.parents[:3]):
                    sync_folder(made)
                with Ledger(folder / RELEASES):
                    pass
            if _text(folder / name) != text:
                write_atomically(folder / name, _encoded(name, text))
        if release is not None:
            with Ledger(folder / RELEASES) as ledger:
                ledger.append([release])


def adopt(folder: Path) -> int:
    """Chain books that have no chain, on their owner's word that they are whole; how many campaigns there are."""
    marker = folder / ADOPTING
    if marker.exists():  # a kill interrupted this
        for name in (HEAD, CHAIN):
            (folder / name).unlink(missing_ok=True)
    elif (folder / CHAIN).exists() or (folder / HEAD).exists():
        raise InputError(f"{folder} has a chain already; its books need not be adopted")
    campaigns = {path: _whole(path) for path in _entries(folder / CAMPAIGNS) if _holds_files(path)}
    write_atomically(marker, b"")
    journal = Journal(folder)
    for path, kept in campaigns.items():
        journal.enter(path.name, kept.files)
        for release in kept.releases:
            journal.enter(path.name, release=release)
    marker.unlink()
    Journal(folder).check_files()
    sync_folder(folder)
    return len(campaigns)


def _whole(path: Path) -> Kept:
    """A campaign's files, if nothing is seen to be missing."""
    kept = Kept(files={name: text for name in sorted(_names(path)) if (text := _text(path / name)) is not None})
    odd = sorted(name for name in kept.files if not _FILE.fullmatch(name))
    if odd or not _CAMPAIGN.fullmatch(path.name):
        raise InputError(f"{path / odd[0] if odd else path} is not of a client's books; they cannot be adopted")
    if TERMS in kept.files:
        kept.releases = list(read_ledger(path / RELEASES))
    elif (path / RELEASES).exists() or any(_entries(path / REPLIES)):
        raise InputError(f"{path / TERMS} is gone, though there are releases or replies; it cannot be adopted")
    recorded = {str(release.round) for release in kept.releases}
    answered = {Path(name).stem for name in kept.files if name.endswith(".sha256")}
    if answered - recorded:
        raise InputError(f"{path / RELEASES} lacks rounds that were answered; it cannot be adopted")
    return kept


def _parsed(record: Mapping[str, Any], path: Path, number: int) -> tuple[str, dict[str, str], Release | None]:
    try:
        campaign, files, release = record["campaign"], dict(record["files"]), record.get("release")
        good = bool(_CAMPAIGN.fullmatch(campaign)) and all(
            _FILE.fullmatch(name) and isinstance(text, str) for name, text in files.items()
        )
        parsed = None if release is None else Release.from_record(release)
    except (KeyError, TypeError, ValueError, AttributeError, InputError):
        good, parsed = False, None
    if not good:
        raise DamagedError(f"{path}, line {number + 2} is no entry of a client's books")
    return campaign, files, parsed


def _check(folder: Path, kept: Kept, before: Kept, *, digests: bool) -> None:
    for name, text in kept.files.items():
        if name.startswith(REPLIES) and not digests:
            continue
        held = _text(folder / name)
        if held != text and held != before.files.get(name):
            raise DamagedError(f"{folder / name} {'is gone' if held is None else 'was changed'}")
    names = _names(folder)
    gone = sorted(name for name in kept.files.keys() - names if name in before.files)
    if gone:
        raise DamagedError(f"{folder / gone[0]} is gone")
    odd = sorted(names - kept.files.keys())
    if odd:
        raise DamagedError(f"{folder / odd[0]} is not of these books")
    _check_releases(folder / RELEASES, kept, before)


def _check_releases(path: Path, kept: Kept, before: Kept) -> None:
    if TERMS not in kept.files:
        if path.exists():
            raise DamagedError(f"{path} is not of these books: the campaign has no {TERMS}")
        return
    if TERMS not in before.files:
        return  # an acceptance that a kill interrupted; `finish` makes the file
    try:
        recorded = list(read_ledger(path))
    except InputError as error:
        raise DamagedError(str(error)) from error
    if recorded not in (kept.releases, before.releases):
        raise DamagedError(f"{path} does not have the releases that were recorded")


def _names(folder: Path) -> set[str]:
    """The files of a campaign that its entries must know."""
    files = {path.name for path in _entries(folder)} | {f"{REPLIES}/{path.name}" for path in _entries(folder / REPLIES)}
    return {
        name
        for name in files
        # A write that a kill interrupted leaves a file whose name begins with a dot.
        if name not in (RELEASES, REPLIES) and not Path(name).name.startswith(".") and not _REPLY.fullmatch(name)
    }


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} cannot be kept: it has characters that UTF-8 does not allow") from error


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return


def _holds_files(path: Path) -> bool:
    return path.is_file() or any(entry.is_file() for entry in path.rglob("*"))


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()  # as bytes: line ends must stay what they are
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return "\0"  # nothing that an entry holds
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
