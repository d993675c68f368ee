"""`python -m reproduction`: the paper's experiments, from specifications to stored runs to figures, tables and a page.

It needs jsam, numpy and scipy; `plan` and `run` need torch too, and `render` needs matplotlib. It uses argparse and not
typer, because a machine with an accelerator may have nothing else installed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsam.errors import InputError, JsamError, install_hint
from reproduction.paths import PROGRAM, Places
from reproduction.spec import Spec, load_specs

DONE, BAD_INPUT, STOPPED, PIPE_CLOSED = 0, 2, 130, 141

_IDS = "ID is an experiment's name, or a pattern as in 'panels-*'; give several, or "
_FURTHER = "count what run --output DIR stored there too"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 bad input, 130 stopped by Ctrl-C."""
    warnings.simplefilter("ignore")
    given = argparse.Namespace()
    try:
        _parser().parse_args(arguments, given)
        given.act(given)
        sys.stdout.flush()
    except JsamError as error:
        say(f"error: {_in_options(str(error), given)}")
        return BAD_INPUT
    except KeyboardInterrupt:
        say("stopped")
        return STOPPED
    except BrokenPipeError:
        # Python would complain once more when it flushes the stream on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return DONE


def say(line: str) -> None:
    """Write one line to standard error, with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {' '.join(line.split())}\n")
    sys.stderr.flush()


def _in_options(message: str, given: argparse.Namespace) -> str:
    """The message, with an argument of the library that it begins with named as the option that was typed."""
    name = re.match(r"(\w+)(?= is | ')", message)
    return f"--{name[1].replace('_', '-')}{message[name.end(1) :]}" if name and name[1] in vars(given) else message


def _list(given: argparse.Namespace) -> None:
    from jsam.sweeps.text_table import text_table
    from reproduction.tabulate import progress_of

    specs, places = _opened(given)
    progress = progress_of(specs, places)
    rows = [(spec.id, str(progress[spec.id]), spec.title) for spec in specs]
    sys.stdout.write(text_table(("experiment", "stored", "what"), rows, words=("experiment", "what")))


def _plan(given: argparse.Namespace) -> None:
    _require("torch", extra="train", command="plan")
    from reproduction.planning import Plans
    from reproduction.prerequisites import waiting_lines
    from reproduction.tuned_settings import Chosen

    specs, places = _opened(given)
    chosen = Chosen.load(places.chosen)
    runs = [config for spec in specs for config in spec.runs(chosen)]
    for line in waiting_lines(specs, chosen, places).values():
        say(line)
    Plans.load(places.plans).prepare(runs, losses=not given.no_losses, tell=say)
    say(f"{len(runs)} runs are planned")


def _run(given: argparse.Namespace) -> None:
    _require("torch", extra="train", command="run")
    from reproduction.running import run_specs

    specs, places = _opened(given)
    _ids_or_all(given, [spec.id for spec in specs])
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


def _merge(given: argparse.Namespace) -> None:
    from reproduction.store import merge

    new, known = merge(Path(given.folder), Places.of(given.root).results)
    say(f"{new} runs are new, {known} were known")


def _choose(given: argparse.Namespace) -> None:
    from reproduction.choosing import choose

    places = _places(given)
    say(f"wrote {places.chosen}: {choose(places)['status']}")


def _table(given: argparse.Namespace) -> None:
    from jsam.sweeps.text_table import text_table
    from reproduction.prerequisites import waiting_lines
    from reproduction.tabulate import COLUMNS, READABLE, readable, table_rows
    from reproduction.tuned_settings import Chosen

    specs, places = _opened(given)
    _ids_or_all(given, [spec.id for spec in specs if spec.kind != "planner"])
    groups = table_rows([spec for spec in specs if given.ids or spec.kind == "training"], places)
    asked = specs if given.ids else []
    for spec in asked:
        if spec.kind == "planner":
            say(f"{spec.id} has no table, only figures and claims: {PROGRAM} render")
    for line in waiting_lines(asked, Chosen.load(places.chosen), places).values():
        say(line)
    titles = {spec.id: spec.title for spec in specs}
    _write(
        given.format,
        [row for group in groups.values() for row in group],
        COLUMNS,
        lambda: "\n".join(
            f"{titles[name]}\n\n{text_table(READABLE, [readable(row) for row in group])}"
            for name, group in groups.items()
        ),
    )


def _render(given: argparse.Namespace) -> None:
    _require("matplotlib", extra="plot", command="render")
    from reproduction.rendering import render_all

    for path in render_all(_places(given), given.ids):
        say(f"wrote {path}")


def _claims(given: argparse.Namespace) -> None:
    from jsam.sweeps.text_table import text_table
    from reproduction.claims import all_claims
    from reproduction.results import Results

    columns = ("source", "statement", "verdict", "numbers")
    rows = [{name: getattr(claim, name) for name in columns} for claim in all_claims(Results(_places(given)))]
    lines = [tuple(row.values()) for row in rows]
    _write(given.format, rows, columns, lambda: text_table(columns, lines, words=columns))


def _write(form: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], table: Callable[[], str]) -> None:
    """Write rows to standard output as JSON or CSV, or else the table made of them."""
    from jsam.report.plain import csv_text

    if form == "json":
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        sys.stdout.write(csv_text(rows, columns) if form == "csv" else table())


def _opened(given: argparse.Namespace) -> tuple[list[Spec], Places]:
    """The experiments asked for, and the folders they are read from and stored in."""
    places = _places(given)
    return load_specs(places, given.ids), places


def _places(given: argparse.Namespace) -> Places:
    return Places.of(given.root, given.output, read_only=given.command not in ("run", "render"))


def _ids_or_all(given: argparse.Namespace, known: Sequence[str]) -> None:
    """Refuse a command without ID: only --all means all experiments."""
    if given.ids and given.all:
        raise InputError("give either ID or --all, not both")
    if not given.ids and not given.all:
        raise InputError(f"give an ID or --all; there are: {' '.join(known)}")


def _require(module: str, *, extra: str, command: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise InputError(f"{command} needs {module}, which is not installed: {install_hint(extra)}")


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake as one line, like every other error of the program."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="The paper's figures and tables: make the missing runs, show the rest.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def add(act: Callable[[argparse.Namespace], None], about: str, *examples: str, more: str = "") -> _Parser:
        name = act.__name__.removeprefix("_")
        command = commands.add_parser(
            name,
            help=about,
            description=f"{about}\n\n{more}",
            epilog="\n".join(["Examples:", *(f"  {PROGRAM} {name}{example}" for example in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(act=act, ids=(), output=None)
        where = "a checkout of jsam (default: the one you are in, else the one that this program is part of)"
        command.add_argument("--root", metavar="DIR", help=where)
        return command

    command = add(
        _list, "Show the experiments, and how much of each is stored.", "", " 'panels-*'", more=_IDS + "none for all."
    )
    _ids(command)
    command.add_argument("--output", metavar="DIR", help=_FURTHER)

    about = "Find η for every cost, and the losses that BBM selects by; another machine then need only train."
    command = add(_plan, about, " table-mnist", more=_IDS + "none for all.")
    _ids(command)
    command.add_argument("--no-losses", action="store_true", help="leave the losses to the machine that trains")

    command = add(
        _run,
        "Make the runs that are missing; each is stored as soon as it is made, so stopping loses nothing.",
        " table-mnist --device cuda --precision tf32",
        " 'panels-*' --only '*/jsam/*seed0' --limit-seconds 600",
        more=_IDS + "--all.",
    )
    _ids(command)
    command.add_argument("--all", action="store_true", help="all experiments")
    command.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    command.add_argument(
        "--precision", default="fp32", help="fp32, tf32 or bf16, the latter two on cuda (default: fp32)"
    )
    only = "only runs whose name or key fits, as in '*/jsam/*seed0'"
    command.add_argument("--only", action="append", default=[], metavar="GLOB", help=only)
    limit = "begin no run after this time, above 0; the next call goes on (default: no limit)"
    command.add_argument("--limit-seconds", type=float, default=math.inf, metavar="SECONDS", help=limit)
    command.add_argument(
        "--output", metavar="DIR", help="where new results go (default: results/paper of the checkout)"
    )

    command = add(
        _merge, "Bring in results that another machine made with run --output DIR.", " from-the-other-machine"
    )
    command.add_argument("folder", metavar="DIR", help="the folder with the results")

    about = "Fix c₂, Q and the learning rates by the stated rule, from the stored tuning runs."
    more = "They are written to results/paper/chosen.toml of the checkout; docs/reproduction.md states the rule."
    add(_choose, about, "", more=more).add_argument("--output", metavar="DIR", help=_FURTHER)

    about = "Show stored accuracies (percent) and costs, the paper's beside them."
    command = add(
        _table, about, " table-mnist", " 'panels-*' --format csv", " --all --format json", more=_IDS + "--all."
    )
    _ids(command)
    command.add_argument("--all", action="store_true", help="all experiments with a table, except the tuning")
    _format(command)
    command.add_argument("--output", metavar="DIR", help=_FURTHER)

    command = add(
        _render,
        "Draw figures and one page from what is stored; nothing is run, and what is missing is shown as missing.",
        "",
        " 'panels-*' --output pictures",
        more=f"{_IDS}none for all. It picks the figures, the page has all.\n"
        "Without --output the tables in the pages docs/reproduction*.md of the checkout are filled in too.",
    )
    _ids(command)
    pages = "where figures and page go; what run --output DIR stored there counts too (default: results/paper)"
    command.add_argument("--output", metavar="DIR", help=pages)

    command = add(_claims, "Say of every claim of the paper whether the stored runs confirm it.", "", " --format json")
    _format(command)
    command.add_argument("--output", metavar="DIR", help=_FURTHER)
    return parser


def _ids(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", nargs="*", metavar="ID", help="an experiment, by name or pattern")


def _format(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=("table", "json", "csv"), default="table", help="(default: table)")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that cannot show η shows ?
    sys.exit(main())
