"""`python -m reproduction`: the sweeps on a machine that has numpy, scipy and torch and nothing else."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from jsam.errors import JsamError
from reproduction.paths import Places
from reproduction.planning import Plans
from reproduction.prerequisites import waiting_lines
from reproduction.spec import Spec, load_specs
from reproduction.store import merge
from reproduction.tuned_settings import Chosen

_FURTHER = "count what run --output DIR stored there too"
_OUTPUT = {
    "run": "where new results go (results/paper of the checkout)",
    **dict.fromkeys(("list", "choose", "table"), _FURTHER),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 2 bad input."""
    given = _parser().parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        places = Places.of(given.root, given.output, read_only=given.command != "run")
        if given.command == "merge":
            new, same = merge(Path(given.folder), places.results)
            say(f"{new} runs are new, {same} were known")
            return 0
        specs = load_specs(places, given.ids)
        return int(given.act(specs, places, given))
    except JsamError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped")
        return 130


def say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


def _list(specs: list[Spec], places: Places, _: argparse.Namespace) -> int:
    from reproduction.tabulate import progress_of

    progress = progress_of(specs, places)
    for spec in specs:
        sys.stdout.write(f"{spec.id:<28} {progress[spec.id]!s:>15}  {spec.title}\n")
    return 0


def _plan(specs: list[Spec], places: Places, given: argparse.Namespace) -> int:
    chosen = Chosen.load(places.chosen)
    runs = [config for spec in specs for config in spec.runs(chosen)]
    for line in waiting_lines(specs, chosen, places).values():
        say(line)
    Plans.load(places.plans).prepare(runs, losses=not given.no_losses, tell=say)
    say(f"{len(runs)} runs are planned")
    return 0


def _run(specs: list[Spec], places: Places, given: argparse.Namespace) -> int:
    from reproduction.running import run_specs

    outcome = run_specs(
        specs,
        places,
        device=given.device,
        precision=given.precision,
        only=given.only,
        limit_seconds=given.limit_seconds,
        tell=say,
    )
    say(str(outcome))
    return 0


def _choose(_: list[Spec], places: Places, __: argparse.Namespace) -> int:
    from reproduction.choosing import choose

    say(f"wrote {places.chosen}: {choose(places)['status']}")
    return 0


def _table(specs: list[Spec], places: Places, _: argparse.Namespace) -> int:
    from reproduction.tabulate import table_rows

    for line in waiting_lines(specs, Chosen.load(places.chosen), places).values():
        say(line)
    rows = [row for group in table_rows(specs, places).values() for row in group]
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, act, about in (
        ("list", _list, "the experiments and how many of their runs are stored"),
        ("plan", _plan, "find η for every cost and the losses that BBM selects by"),
        ("run", _run, "make the runs that are missing"),
        ("choose", _choose, "fix c₂, Q and the learning rates by the stated rule"),
        ("table", _table, "rows of stored results as JSON"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(act=act, ids=(), output=None)
        if name != "choose":
            command.add_argument(
                "ids", nargs="*", metavar="ID", help="experiments, by name or pattern; all if none is given"
            )
        if name in _OUTPUT:
            command.add_argument("--output", metavar="DIR", help=_OUTPUT[name])
        _root(command)
        if name == "plan":
            command.add_argument("--no-losses", action="store_true", help="leave the losses to the machine that trains")
        if name == "run":
            command.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
            command.add_argument("--precision", default="fp32", help="fp32, tf32 or bf16 (the latter two on cuda)")
            command.add_argument("--only", action="append", default=[], metavar="GLOB", help="runs by name or key")
            command.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no run after this time")
    about = "bring in results that another machine made with --output DIR"
    command = commands.add_parser("merge", help=about, description=about)
    command.set_defaults(output=None)
    command.add_argument("folder", metavar="DIR", help="the folder that they are in")
    _root(command)
    return parser


def _root(command: argparse.ArgumentParser) -> None:
    command.add_argument("--root", default=None, metavar="DIR", help="a checkout of jsam (the one you are in)")


if __name__ == "__main__":
    sys.exit(main())
