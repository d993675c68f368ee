"""SuperNodes that are killed, at random moments or while they answer, and started again as a supervisor would."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_store import campaign_id
from jsam.flower.launch.federation import LocalFederation
from jsam.flower.launch.processes import Child

NODE, NODE_ANSWERING, ANSWERING = KINDS = ("node", "node while answering", "answering process")
# Flower takes about a minute to notice that an answering process is gone, and gives its node no other task meanwhile.
ORDER = (NODE_ANSWERING, NODE, ANSWERING, NODE_ANSWERING)
# It also refuses a key for about a minute after a kill, so there all kinds take as long.
ORDER_WITH_KEYS = (ANSWERING, NODE_ANSWERING, ANSWERING, NODE)
_AGAIN = 10.0  # seconds between two starts of one node
_LONGEST_WATCH = 30.0  # for a client to begin an answer
_LONGEST_DELAY = 0.06  # then; about what computing and storing the answer takes


class Nodes:
    """Counts kills by kind, and by what the ledger had on disk of the answer that was hit."""

    def __init__(self, federation: LocalFederation, rng: random.Random, order: Sequence[str] | None = None) -> None:
        self._federation, self.rng = federation, rng
        self.kills: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self._ledgers = {name: ClientFiles.load(path).ledger for name, path in federation.client_files.items()}
        self._arrivals_before: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._order = order or (ORDER if federation.certificates is None else ORDER_WITH_KEYS)

    @property
    def all_connected(self) -> bool:
        """Whether every node is back: killing one that is still starting would hit nothing."""
        return all(
            child.running and _arrivals(child) > self._arrivals_before.get(name, 0)
            for name, child in self._federation.nodes.items()
        )

    def revive(self) -> None:
        """Start nodes that have ended; one whose key is refused ends again, and is started again a while later."""
        for name, child in list(self._federation.nodes.items()):
            if not child.running and time.monotonic() > self._started.get(name, 0.0) + _AGAIN:
                self._start(name)

    def _start(self, name: str) -> None:
        self._started[name] = time.monotonic()
        self._federation.start_node(name)

    def kill(self, campaign: str, *, longest_wait: float, over: Callable[[], bool]) -> None:
        """One kill of the kind whose turn it is, unless the campaign is over or nobody answers for too long."""
        kind = self._order[sum(self.kills.values()) % len(self._order)]
        if kind == NODE:
            time.sleep(self.rng.random() * longest_wait)
            self._kill_node(self.rng.choice(sorted(self._federation.nodes)))
        else:
            name = self._begun_answer(campaign, over)
            if name is None:
                return
            # Mostly at once: the answer may be done in less.
            time.sleep(self.rng.random() ** 2 * _LONGEST_DELAY)
            child = self._federation.nodes[name]
            if kind == NODE_ANSWERING:
                self._kill_node(name)
            elif not _kill_answering(child.group):
                return
            self.stages[self._stage(name, campaign)] += 1
        self.kills[kind] += 1

    def _kill_node(self, name: str) -> None:
        child = self._federation.nodes[name]
        child.kill()
        self._arrivals_before[name] = _arrivals(child)
        self._start(name)

    def _begun_answer(self, campaign: str, over: Callable[[], bool]) -> str | None:
        """A client whose ledger has just recorded a release."""
        paths = {name: self._campaign(name, campaign) / "releases.jsonl" for name in self._ledgers}
        before = {name: _size(path) for name, path in paths.items()}
        deadline = time.monotonic() + _LONGEST_WATCH
        while time.monotonic() < deadline and not over():
            for name, path in paths.items():
                if (size := _size(path)) > before[name] and _recorded(path):
                    return name
                before[name] = size
            time.sleep(0.001)
        return None

    def _stage(self, name: str, campaign: str) -> str:
        """What there is on disk of the last round that was recorded."""
        folder = self._campaign(name, campaign)
        recorded = _recorded(folder / "releases.jsonl")
        replies, digests = (len(list(folder.glob(f"replies/*.{kind}"))) for kind in ("bin", "sha256"))
        if digests >= recorded:
            return "record, reply and digest"
        return "record and reply" if replies > digests else "record"

    def _campaign(self, name: str, campaign: str) -> Path:
        return self._ledgers[name] / "campaigns" / campaign_id(campaign)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _recorded(path: Path) -> int:
    """The first line of a ledger names its format; it is there from the day on which terms were accepted."""
    return path.read_bytes().count(b"\n") - 1


def _arrivals(child: Child) -> int:
    """A SuperNode logs its id when the SuperLink has let it in; the log goes on after a restart."""
    return child.log.read_text(errors="replace").count("SuperNode ID")


def _kill_answering(group: int) -> bool:
    """Kill those processes of a SuperNode that were forked to answer a message."""
    hit = False
    for number in _answering(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
            hit = True
    return hit


def _answering(group: int) -> list[int]:
    members = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                members[int(stat.parent.name)] = int(fields[1])
    servers = set()
    for number in members:
        with contextlib.suppress(OSError):
            if b"--serve" in (Path("/proc") / str(number) / "cmdline").read_bytes().split(b"\0"):
                servers.add(number)
    # A fork has its parent's command line.
    return [number for number, parent in members.items() if parent in servers]
