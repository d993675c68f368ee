"""Kill -9 a client that answers, at random moments, and look at what has left it and what its books say.

`python -m tests.soak.client_ledger_kills --kills 500` writes results/soak/client-ledger-kills.json; `make test` kills a
few times. The client is a process of its own; what it writes into a pipe has left it and cannot be taken back.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_noise import fresh_noise
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.terms import PublicInputs, Terms
from jsam.mechanism.rules import Rules
from jsam.privacy import Release, check_contract, read_ledger

RESULT = Path("results/soak/client-ledger-kills.json")
ROUNDS, PER_ROUND, SIZE = 30, 5, 5000
LONGEST_DELAY = 0.012  # about two answers: a kill then falls anywhere within one


def soak(kills: int, folder: Path, *, seed: int) -> dict[str, Any]:
    """Kill until so many have hit; raises AssertionError at the first second value of a round or ε too much."""
    rng, began, found = random.Random(seed), time.monotonic(), Counter[str]()
    campaigns = 0
    while found["kills"] < kills:
        _campaign(rng, folder / f"books-{campaigns}", kills, found)
        campaigns += 1
    return {
        "kills": found["kills"],
        "campaigns": campaigns,
        "rounds_a_campaign": ROUNDS,
        "replies_that_left": found["left"],
        "rounds_with_a_second_value": 0,
        "campaigns_overspent": 0,
        "kills_by_what_the_last_round_had_on_disk": {name: found[name] for name in ("nothing new", *_STAGES)},
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }


_STAGES = ("record", "record and reply", "record, reply and digest")


def _campaign(rng: random.Random, folder: Path, kills: int, found: Counter[str]) -> None:
    schedule = {t: rng.randint(1, PER_ROUND) for t in range(ROUNDS) if rng.random() < 0.8}
    terms = _terms(sum(schedule.values()))
    ClientLedger(folder).accept(terms)
    left: defaultdict[int, set[str]] = defaultdict(set)
    ended = False
    while not ended:
        # The server does not know what was lost, so it begins again somewhere before the last reply that it got.
        start = max(0, max(left, default=0) - rng.randint(0, 3))
        before = _stages(folder)
        child, pipe = _client(folder, terms, {t: m for t, m in schedule.items() if t >= start})
        wanted = rng.randint(0, 12) if found["kills"] < kills else len(schedule) + 1
        ended = _listen(child, pipe, left, wanted, rng.random() * LONGEST_DELAY)
        if not ended:
            found["kills"] += 1
            found[_last_change(before, _stages(folder))] += 1
        _check(folder, terms, left)
    assert left.keys() == schedule.keys(), "every round of the schedule must be answered in the end"
    found["left"] += len(left)


def _terms(participations: int) -> Terms:
    public = PublicInputs(
        rules=Rules(prior="uniform:0,1", loss_weight=5.0),
        num_clients=3,
        loss_weight=5.0,
        rounds=ROUNDS,
        per_round=PER_ROUND,
        learning_rate=0.1,
        model="none",
    )
    return Terms.of_contract(
        campaign="soak",
        client="a",
        epsilon=2.0,
        delta=1e-5,
        participations=participations,
        clip_norm=1.0,
        samples=100,
        adjacency="add-remove",
        payment=1.0,
        public=public,
    )


def _client(folder: Path, terms: Terms, schedule: dict[int, int]) -> tuple[int, int]:
    """A process that answers these rounds; each reply leaves through the pipe as a line."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    code = 1
    with contextlib.suppress(BaseException):
        os.close(reader)
        ledger = ClientLedger(folder)
        for round, multiplicity in schedule.items():
            request = RoundRequest.of_terms(terms, round=round, multiplicity=multiplicity)
            reply = ledger.answer(request, _compute, model=f"{round:064x}")
            os.write(writer, f"{round} {hashlib.sha256(reply).hexdigest()}\n".encode())
        code = 0
    os._exit(code)


def _compute(release: Release) -> bytes:
    return fresh_noise(release.noise_std, SIZE).astype("float32").tobytes()


def _listen(child: int, pipe: int, left: dict[int, set[str]], wanted: int, delay: float) -> bool:
    """Take in `wanted` replies, let `delay` pass, kill; True if the client had ended by itself."""
    with open(pipe, encoding="ascii") as lines:
        for _ in range(wanted):
            _note(lines.readline(), left)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        for line in lines:
            _note(line, left)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "a client that nobody killed must answer every round"
    return code == 0


def _note(line: str, left: dict[int, set[str]]) -> None:
    if line:
        round, digest = line.split()
        left[int(round)].add(digest)


def _check(folder: Path, terms: Terms, left: dict[int, set[str]]) -> None:
    twice = [round for round, values in left.items() if len(values) > 1]
    assert not twice, f"rounds of which two values left: {twice}"
    (path,) = folder.rglob("releases.jsonl")
    releases = read_ledger(path)
    assert left.keys() <= {release.round for release in releases}, "every reply that left must be recorded"
    assert check_contract(releases, {terms.client: terms.epsilon}, terms.delta).kept
    ClientLedger(folder).check()  # whatever a kill leaves is never taken for damage
    (entry,) = ClientLedger(folder).statement()
    assert not entry.overspent


def _stages(folder: Path) -> dict[int, int]:
    """How far each round got on disk: its record, its reply, its digest."""
    (path,) = folder.rglob("releases.jsonl")
    replies = path.parent / "replies"
    return {
        release.round: (replies / f"{release.round}.bin").exists() + (replies / f"{release.round}.sha256").exists()
        for release in read_ledger(path)
    }


def _last_change(before: dict[int, int], after: dict[int, int]) -> str:
    changed = [round for round, stage in after.items() if before.get(round) != stage]
    return _STAGES[after[max(changed)]] if changed else "nothing new"


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jsam-soak-") as folder:
        result = soak(options.kills, Path(folder), seed=options.seed)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(f"{result['kills']} kills, no round with a second value, nothing overspent: {RESULT}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
