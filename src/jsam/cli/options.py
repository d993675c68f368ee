"""The options that the commands share, each named like the argument it stands for in Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from jsam.cli.output import Format, check_targets, chosen_format
from jsam.errors import InputError

ECONOMY, WEIGHTS, RESULT = "What is known and wanted", "Weights and caps", "Result"

# Its help is a paragraph of each command's: click 8.5 drops the help that typer 0.20 gives to arguments.
ClientsFile = Annotated[str, typer.Argument(metavar="CLIENTS.csv", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class EconomyOptions:
    """What is known about the clients, and what the server wants."""

    prior: Annotated[
        str | None,
        typer.Option(
            help="What is known about sensitivities before anybody reports: uniform:0,1  beta:2,5 "
            " lognorm:s=0.5,scale=0.3  truncnorm:a=-2,b=2,loc=0.5,scale=0.2 (any continuous scipy.stats distribution) "
            " or empirical:PAST.csv.",
            rich_help_panel=ECONOMY,
        ),
    ] = None
    loss_weight: Annotated[
        float | None,
        typer.Option(
            help="How much a unit of the loss bound matters against a unit of money. Give this or --budget.",
            rich_help_panel=ECONOMY,
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(
            help="What may be spent. It becomes a loss weight before any report is read.", rich_help_panel=ECONOMY
        ),
    ] = None
    budget_probability: Annotated[
        float | None,
        typer.Option(
            help="Keep the payments within the budget with this probability, instead of the cost in expectation.",
            rich_help_panel=ECONOMY,
        ),
    ] = None
    noise_weight: Annotated[
        float, typer.Option(help="Weight of the privacy noise in the loss bound.", rich_help_panel=WEIGHTS)
    ] = 1.0
    bias_weight: Annotated[
        float, typer.Option(help="Weight of the selection bias in the loss bound.", rich_help_panel=WEIGHTS)
    ] = 1.0
    max_selection_prob: Annotated[
        float | None,
        typer.Option(help="No client is selected with more than this probability.", rich_help_panel=WEIGHTS),
    ] = None
    max_epsilon: Annotated[
        float | None, typer.Option(help="No client sells more ε than this.", rich_help_panel=WEIGHTS)
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of whatever is drawn at random.", rich_help_panel=WEIGHTS)] = 0

    @property
    def past_reports(self) -> list[str]:
        """The file that --prior reads, if it reads one."""
        from jsam.mechanism.priors import file_of_prior

        file = file_of_prior(self.prior or "")
        return [] if file is None else [file]

    def check(self) -> None:
        """Exactly one of loss weight and budget."""
        if self.loss_weight is not None and self.budget is not None:
            raise InputError("give --loss-weight or --budget, not both: a budget determines the loss weight")
        if self.loss_weight is None and self.budget is None:
            raise InputError("give --loss-weight (as in --loss-weight 5) or --budget (as in --budget 10)")
        if self.budget_probability is not None and self.budget is None:
            raise InputError("--budget-probability needs --budget")
        if self.budget_probability is not None and not 0 < self.budget_probability < 1:
            raise InputError(
                f"--budget-probability is {self.budget_probability:g}; it must lie strictly between 0 and 1"
            )


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where the result goes, and what as."""

    format: Annotated[
        Format | None,
        typer.Option(
            help="What the result is written as: by the ending of --output (.json, .csv, .txt), else a table.",
            rich_help_panel=RESULT,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the result here instead of to standard output.", rich_help_panel=RESULT
        ),
    ] = None

    usual: ClassVar[Format] = Format.TABLE

    @property
    def kind(self) -> Format:
        """What to write."""
        return chosen_format(self.format, self.output, self.usual)

    def check(self, plot: Path | None = None, *, sources: Sequence[str] = ()) -> None:
        """Refuse, before anything is computed, what could never be written, and to write over what is read."""
        check_targets(self.output, plot, sources=sources)
        _ = self.kind


def known_here(name: str) -> str:
    """The name of a mechanism that the user wrote; a class of the user's own is imported."""
    if ":" in name:
        from jsam.mechanism.registry import import_mechanism

        import_mechanism(name)
    return name


MechanismName = Annotated[
    str,
    typer.Option(
        help="jsam  jsam-ci  usbm  usbm-compensated  fsbm-M  bbm-M, with a number of clients for M, or a class of your"
        " own, package.module:Class.",
        parser=known_here,
        metavar="NAME",
        rich_help_panel=ECONOMY,
    ),
]

PlotFile = Annotated[
    Path | None,
    typer.Option(metavar="F.png", help="Draw a picture into this file (.png, .pdf, .svg).", rich_help_panel=RESULT),
]


def refuse_columns(mechanism: str, who: str) -> None:
    """Refuse a mechanism that selects by a column of CLIENTS.csv where there is no such file."""
    from jsam.mechanism.registry import find_description

    description = find_description(mechanism)
    for need in () if description is None else description.needs:
        raise InputError(f"{mechanism} selects by {need.words}, which {who}; choose another --mechanism")


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take whole dataclasses of options; typer sees one option a field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            flat.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        field_hints = get_type_hints(kind, include_extras=True)
        flat += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=field_hints[f.name])
            for f in fields(kind)
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        bundles = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **bundles)

    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # typer keeps line breaks
    del run.__wrapped__
    run.__dict__["__signature__"] = inspect.Signature(flat)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run
