"""Options of commands: each is named like the argument it stands for in Python, and one table can serve many."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import click
import typer

from jsam.cli.output import Format, deliver, rendered, require
from jsam.errors import InputError
from jsam.report.output_files import check_target, same_file
from jsam.report.plain import csv_text, json_text

if TYPE_CHECKING:
    from rich.console import RenderableType

PICTURES = (".png", ".pdf", ".svg")
ENDINGS = {".json": Format.JSON, ".csv": Format.CSV, ".txt": Format.TABLE}
ECONOMY, WEIGHTS, RESULT = "What is known and wanted", "Weights and caps", "Result"


def examples(*commands: str) -> str:
    """The end of a command's help."""
    heading = f"[bold]{'Example' if len(commands) == 1 else 'Examples'}[/bold]"
    return "".join(f"\n{line}\n" for line in (heading, *(f"  {command}" for command in commands)))


def argument(metavar: str) -> Any:
    """Its help is a paragraph of each command's: click 8.5 drops the help that typer 0.20 gives to arguments."""
    return typer.Argument(metavar=metavar, show_default=False)


def option(panel: str | None, words: str, *names: str, choices: Sequence[str] = (), **others: Any) -> Any:
    """An option under a heading of the help, what the help says of it, and its name where this is not the field's."""
    if choices:
        others["click_type"] = click.Choice(choices)
    return typer.Option(*names, help=words, rich_help_panel=panel, **others)


ClientsFile = Annotated[str, argument("CLIENTS.csv")]
RunFolderArgument = Annotated[Path, argument("FOLDER")]
PlotFile = Annotated[Path | None, option(RESULT, "Draw a picture into this file (.png, .pdf, .svg).", metavar="F.png")]
TensorBoardFlag = Annotated[bool, option(RESULT, "Write TensorBoard files too.", "--tensorboard")]


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where the result goes, and what as; `usual` is what the command prints where nothing is said."""

    format: Format | None = None
    output: Path | None = None
    usual: Format = Format.TABLE

    @property
    def kind(self) -> Format:
        """The format asked for, or else the one that the file's name says, or else the usual one."""
        if self.format is not None:
            return self.format
        ending = "" if self.output is None else self.output.suffix.lower()
        if ending and ending not in ENDINGS:
            raise InputError(
                f"--output {str(self.output)!r}: what to write is not clear from {ending!r}; end the name in "
                f"{', '.join(list(ENDINGS)[:-1])} or {list(ENDINGS)[-1]}, or give --format"
            )
        return ENDINGS.get(ending, self.usual)

    def check(self, *, sources: Sequence[str] = (), **others: Path | None) -> None:
        """Refuse, before anything is computed, what could never be written, and to write over what is read.

        `others` are the files of other options, such as plot=Path("a.png"). A dash for the output is standard output.
        """
        files: dict[str, Path] = {}
        for name, target in {"output": self.output, **others}.items():
            if target is None or (name == "output" and str(target) == "-"):
                continue
            typed = f"--{name.replace('_', '-')}"
            check_target(target)
            for source in sources:
                if same_file(source, target):
                    read = "standard input" if source == "-" else repr(source)
                    raise InputError(
                        f"{typed} {str(target)!r} would overwrite {read}, which is read; name another file"
                    )
            for other, path in files.items():
                if same_file(path, target):
                    raise InputError(f"{other} and {typed} both name {str(target)!r}; each needs a file of its own")
            files[typed] = target
        plot = files.get("--plot")
        if plot is not None:
            if plot.suffix.lower() not in PICTURES:
                raise InputError(f"--plot {str(plot)!r}: the name must end in {' or '.join(PICTURES)}")
            require("--plot", "plot", matplotlib="matplotlib")
        _ = self.kind

    def deliver(
        self,
        content: Callable[[], Mapping[str, Any]],
        rows: str | None,
        tables: Callable[[], Iterable[RenderableType]],
        columns: Sequence[str] | None = None,
        beside: Mapping[Path, bytes] | None = None,
    ) -> None:
        """Hand over the result as it was asked for: tables, the content as JSON, or its list `rows` as CSV.

        Without `rows` the content itself is the only row. `beside` are files that go with it, all or none.
        """
        if self.kind is Format.TABLE:
            text = rendered(*tables(), to_file=self.output is not None)
        elif self.kind is Format.JSON:
            text = json_text(content())
        else:
            text = csv_text([content()] if rows is None else content()[rows], columns)
        deliver(text, self.output, beside)


@dataclass(frozen=True)
class Flags:
    """Options that belong together: for each name its type and help, and what a command gets of their values."""

    options: Mapping[str, Any]
    parsed: Callable[[dict[str, Any]], Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def result_flags(usual: Format = Format.TABLE) -> Flags:
    words = (
        "What the result is written as: by the ending of --output (.json, .csv, .txt), else what the command usually"
        " prints."
    )
    options: dict[str, Any] = {
        "format": Annotated[Format | None, option(RESULT, words)],
        "output": Annotated[
            Path | None, option(RESULT, "Write the result here instead of to standard output.", metavar="FILE")
        ],
    }
    return Flags(options, lambda values: ResultOptions(**values, usual=usual))


Result = Annotated[ResultOptions, result_flags()]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take whole groups of options, as `Flags`; typer sees them one by one."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Sequence[str], Callable[[dict[str, Any]], Any]]] = {}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        flags = next((extra for extra in get_args(kind)[1:] if isinstance(extra, Flags)), None)
        if flags is None:
            flat.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = (list(flags.options), flags.parsed)
        flat += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=flags.defaults.get(name), annotation=option)
            for name, option in flags.options.items()
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        bundles = {
            group: parsed({name: given.pop(name) for name in names}) for group, (names, parsed) in groups.items()
        }
        command(**given, **bundles)

    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # typer keeps line breaks
    del run.__wrapped__
    run.__dict__["__signature__"] = inspect.Signature(flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run
