"""Kill -9 at random moments, resume, and compare every byte with a run of the same noise key that nobody interrupted.

`python -m tests.soak.kill_and_resume --kills 100` writes results/soak/kill-and-resume.json; `make test` kills a few
times.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OPTIONS = [
    "--dataset", "digits", "--clients", "12", "--rounds", "60", "--per-round", "4", "--loss-weight", "200",
    "--max-epsilon", "10", "--momentum", "0.5", "--checkpoint-every", "7", "--evaluate-every", "5", "--threads", "1",
]  # fmt: skip
POLL = 0.001
RESULT = Path("results/soak/kill-and-resume.json")


def soak(kills: int, folder: Path, *, seed: int) -> dict[str, Any]:
    """Interrupt runs until so many kills have hit; raises AssertionError at the first byte that differs."""
    rng, began = random.Random(seed), time.monotonic()
    _wait(_start(["simulate", *OPTIONS, "--output", str(folder / "reference")]))
    reference = _contents(folder / "reference")
    ledger = reference["ledger.jsonl"]  # it tells of scales and draws, so it is the same whatever the noise's key is
    full, done, runs, most = len(ledger), 0, 0, 0
    moments: list[float] = []
    while done < kills:
        run, hits = folder / f"run-{runs}", 0
        command = ["simulate", *OPTIONS, "--output", str(run)]
        # A few kills a run, then it may end: otherwise all later kills would hit its last moments.
        for _ in range(min(rng.randint(1, 6), kills - done)):
            # A moment is a length of the ledger and a little more: kills then hit all stages of a run alike.
            target = rng.randrange(_size(run), full + 1) if rng.random() < 0.9 else 0
            if not _killed(_start(command), run, target, rng.random() * 0.05):
                break
            done, hits = done + 1, hits + 1
            moments.append(round(_size(run) / full, 3))
            _check_prefix(run, ledger)
            if (run / "config.json").exists():
                command = ["resume", str(run)]
        _wait(_start(["resume", str(run)] if (run / "config.json").exists() else command))
        twin = folder / f"twin-{runs}"
        _begin_again(run, twin)
        _wait(_start(["resume", str(twin)]))
        assert _contents(run)["ledger.jsonl"] == ledger, "the ledger must be that of an uninterrupted run"
        _compare(_contents(run), _contents(twin))
        runs, most = runs + 1, max(most, hits)
        shutil.rmtree(run)
        shutil.rmtree(twin)
    return {
        "kills": done,
        "runs": runs,
        "most_kills_in_one_run": most,
        "share_of_the_ledger_written_at_each_kill": sorted(moments),
        "differences": 0,
        "ledgers_exact": True,
        "seed": seed,
        "rounds": 60,
        "seconds": round(time.monotonic() - began),
        **_versions(),
    }


def _start(command: Sequence[str]) -> int:
    """A process of its own, forked so that torch is loaded once; nothing was computed yet, so a fork is safe."""
    child = os.fork()
    if child:
        return child
    code = 1
    with contextlib.suppress(BaseException):
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        from jsam.cli import main

        code = main(list(command))
    os._exit(code)


def _wait(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "a run that nobody killed must succeed"


def _killed(child: int, run: Path, target: int, delay: float) -> bool:
    """SIGKILL once the ledger is `target` bytes long and `delay` has passed; False if the run ended before."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, "a resumed run must succeed"
            return False
        if _size(run) >= target:
            break
        time.sleep(POLL)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _size(run: Path) -> int:
    try:
        return (run / "ledger.jsonl").stat().st_size
    except OSError:
        return 0


def _check_prefix(run: Path, reference: bytes) -> None:
    """What a kill leaves of the ledger is the beginning of the uninterrupted one, to the byte, torn line included."""
    with contextlib.suppress(FileNotFoundError):
        left = (run / "ledger.jsonl").read_bytes()
        assert reference.startswith(left), "the ledger of a killed run must be the beginning of the whole one"


def _begin_again(run: Path, twin: Path) -> None:
    """The same run with the same noise key, before its first round: nobody interrupts it from there."""
    twin.mkdir()
    for name in ("config.json", "contract.json", "rules.toml", "schedule.jsonl", "noise.key"):
        shutil.copy(run / name, twin / name)


def _contents(run: Path) -> dict[str, bytes]:
    # A kill may leave a file that was being written beside its place; it is never read.
    return {path.name: path.read_bytes() for path in run.iterdir() if not path.name.endswith(".part")}


def _compare(found: dict[str, bytes], reference: dict[str, bytes]) -> None:
    assert found.keys() == reference.keys(), sorted(found.keys() ^ reference.keys())
    odd = [name for name, data in reference.items() if found[name] != data]
    assert not odd, f"files that differ from the uninterrupted run's: {', '.join(odd)}"


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    import jsam

    return {"jsam": jsam.__version__, "torch": torch.__version__, "numpy": np.__version__}


def preload() -> None:
    """Load everything slow once, before the first fork."""
    for name in ("torch", "sklearn.datasets", "dp_accounting.pld", "jsam.cli", "jsam.training.recorded_run"):
        importlib.import_module(name)


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    preload()
    with tempfile.TemporaryDirectory(prefix="jsam-soak-") as folder:
        result = soak(options.kills, Path(folder), seed=options.seed)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(f"{result['kills']} kills in {result['runs']} runs, no difference: {RESULT}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
