"""`python -m tests.golden [--store]`: compare with the stored results to the last digit, or store them anew."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.cases import TRAINING, Case, cases

OUTPUTS = Path(__file__).parent / "outputs"


def answer(case: Case, folder: Path) -> str:
    """What the command prints; its status is part of it, since an audit may find something."""
    (folder / "clients.csv").write_text(case.clients, encoding="utf-8")
    arguments = ["clients.csv" if word == "CLIENTS" else word for word in case.arguments]
    command = [sys.executable, "-m", "jsam", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise SystemExit(f"{case.name}: {ended.stderr}")
    return ended.stdout


def trained(folder: Path) -> str:
    """Digests of what a seeded run on the CPU leaves: its parameters, number for number, and what was released."""
    import torch

    run = folder / "run"
    subprocess.run([sys.executable, "-m", "jsam", *TRAINING.split(), "--output", str(run)], check=True)
    digest = hashlib.sha256()
    for name, value in sorted(torch.load(run / "model.pt", weights_only=True).items()):
        digest.update(name.encode() + value.numpy().tobytes())
    ledger = hashlib.sha256((run / "ledger.jsonl").read_bytes())
    return f'{{"parameters": "{digest.hexdigest()}", "ledger": "{ledger.hexdigest()}"}}\n'


def unchanged(now: object, stored: object) -> bool:
    """Whether everything that is stored is still there, to the last digit; new names may stand beside it."""
    if isinstance(stored, dict):
        return isinstance(now, dict) and all(name in now and unchanged(now[name], stored[name]) for name in stored)
    if isinstance(stored, list):
        return isinstance(now, list) and len(now) == len(stored) and all(map(unchanged, now, stored))
    return type(now) is type(stored) and now == stored


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--store", action="store_true", help="rewrite the stored results")
    options = parser.parse_args()
    changed = count = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        results = {case.name: answer(case, folder) for case in cases()} | {"training": trained(folder)}
    for name, text in results.items():
        stored = OUTPUTS / f"{name}.json"
        count += 1
        if options.store:
            stored.write_text(text, encoding="utf-8")
        elif not stored.exists() or not unchanged(json.loads(text), json.loads(stored.read_text(encoding="utf-8"))):
            changed += 1
            print(f"differs: {name}")
    print(f"{count} results, {changed} differ" if not options.store else f"{count} results stored")
    raise SystemExit(1 if changed else 0)


if __name__ == "__main__":
    main()
