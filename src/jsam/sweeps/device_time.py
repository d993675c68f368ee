"""How long the device was busy with an experiment: a line for each time that it was run or gone on with.

The seconds that runs store overlap where runs go side by side; these do not.
"""

from __future__ import annotations

import csv
import io
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from jsam.errors import InputError
from jsam.report.output_files import write_result

FILE = "sweeps.csv"
CPU = "CPU"


@dataclass(frozen=True, kw_only=True, order=True)
class Sweep:
    """`runs` of an experiment were made in `seconds`, from the loading of data to the last result."""

    started: str
    experiment: str
    runs: int
    seconds: float
    device: str


COLUMNS = [field.name for field in fields(Sweep)]


def read_sweeps(folder: Path) -> list[Sweep]:
    """In the order of time; none where nothing was run."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != COLUMNS:
                raise ValueError(f"its first line must be {','.join(COLUMNS)}")
            return sorted(
                Sweep(
                    started=row["started"],
                    experiment=row["experiment"],
                    runs=int(row["runs"]),
                    seconds=float(row["seconds"]),
                    device=row["device"],
                )
                for row in rows
            )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a list of sweeps: {error}") from error


def add_sweep(folder: Path, experiment: str, *, runs: int, seconds: float, device: str) -> None:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))
    sweep = Sweep(started=started, experiment=experiment, runs=runs, seconds=round(seconds, 1), device=device)
    _write(folder, [*read_sweeps(folder), sweep])


def merge_sweeps(source: Path, target: Path) -> None:
    sweeps = {*read_sweeps(source), *read_sweeps(target)}
    if sweeps:
        _write(target, list(sweeps))


def _write(folder: Path, sweeps: list[Sweep]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(astuple(sweep) for sweep in sorted(sweeps))
    folder.mkdir(parents=True, exist_ok=True)
    write_result(folder / FILE, text.getvalue().encode())
