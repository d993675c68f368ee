"""A process that writes a ledger is killed, really, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from jsam.privacy import Ledger, read_ledger

CLIENTS = 10

# Starts two rounds before the last recorded, like a run resumed from a checkpoint, and never ends by itself.
WRITER = """
import sys
from jsam.privacy import Ledger, Release
with Ledger(sys.argv[1], fsync=sys.argv[2] == "fsync") as ledger:
    round = max(0, max((entry.round for entry in ledger), default=0) - 2)
    while True:
        ledger.append([Release.of_draws(round=round, client=k, multiplicity=1 + k % 3, noise_multiplier=0.1 + k / 7,
            clip_norm=6.0, samples=600, adjacency="add-remove", delta=1e-5) for k in range(10)])
        print(round, flush=True)
        round += 1
"""


@pytest.mark.parametrize("mode", ["fsync", "no-fsync"])
def test_kills_at_any_moment_lose_no_acknowledged_round_and_double_none(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "ledger.jsonl"
    acknowledged = -1
    for wanted in (1, 2, 17, 60, 101):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), mode], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(wanted):
            acknowledged = max(acknowledged, int(writer.stdout.readline()))
        os.kill(writer.pid, signal.SIGKILL)
        # The last line may be torn: the writer died while printing it.
        for line in writer.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                acknowledged = max(acknowledged, int(line))
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL

        counts = Counter(entry.round for entry in read_ledger(path))
        complete = [round for round in counts if counts[round] == CLIENTS]
        assert complete == list(range(len(complete)))
        assert acknowledged < len(complete) <= len(counts) <= len(complete) + 1
    with Ledger(path) as ledger:
        assert len({(entry.round, entry.client) for entry in ledger}) == len(ledger)
