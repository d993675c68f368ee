"""The options that stand for `Rules`: made from its own fields, alone or over a file that --rules names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from jsam.cli.options import ECONOMY, RESULT, WEIGHTS, Flags, option
from jsam.errors import InputError
from jsam.mechanism.registry import import_mechanism, mechanism_names
from jsam.mechanism.rules import Rules, merged, read_settings

RULES_FILE, WRITTEN_RULES = "rules", "write_rules"

_HELP = {
    "mechanism": f"{'  '.join(mechanism_names())}, with a number of clients for M and of types for K, or a class "
    "of your own, package.module:Class.",
    "prior": "What is known about sensitivities before anybody reports: uniform:0,1  beta:2,5 "
    " lognorm:s=0.5,scale=0.3  truncnorm:a=-2,b=2,loc=0.5,scale=0.2 (any continuous scipy.stats distribution) "
    " or empirical:PAST.csv; or halves: two halves of the clients are planned apart, each with a prior learned from "
    "the other one's reports.",
    "loss_weight": "How much a unit of the loss bound matters against a unit of money. Give this or --budget.",
    "budget": "What may be spent. It becomes a loss weight before any report is read.",
    "budget_probability": "Keep the payments within the budget with this probability, instead of the cost in "
    "expectation.",
    "noise_weight": "Weight of the privacy noise in the loss bound.",
    "bias_weight": "Weight of the selection bias in the loss bound.",
    "max_selection_prob": "No client is selected with more than this probability.",
    "max_epsilon": "No client sells more ε than this.",
    "min_clients": "Keep at least so many clients.",
    "min_selection_prob": "Whoever is kept is selected with at least this probability.",
    "heterogeneity": "How much clients' data differ, ζ²: a number, alike:600/10, classes:2/10, dirichlet:0.5/10 or "
    "similarity:30. It takes the place of --bias-weight.",
    "lot": "Count prices and data by lots of so many records, so that splitting one's records does not pay: the prior "
    "is then that of the price of a lot (jsam-even, with a column samples).",
    "seed": "Seed of whatever is drawn at random.",
}
_WEIGHTS = (
    "noise_weight",
    "bias_weight",
    "max_selection_prob",
    "max_epsilon",
    "min_clients",
    "min_selection_prob",
    "heterogeneity",
    "lot",
    "seed",
)


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """What was written of the rules on the command line, and the files that hold the rest and take the whole."""

    given: Mapping[str, Any]
    file: Path | None = None
    written: Path | None = None

    def rules(self, **usual: Any) -> Rules:
        """The rules: what was given takes the place of what the file says, and that of what is `usual`."""
        if self.given.get("loss_weight") is not None and self.given.get("budget") is not None:
            raise InputError("give --loss-weight or --budget, not both: a budget determines the loss weight")
        stored = {} if self.file is None else read_settings(self.file)
        settings = merged(usual, stored, self.given)
        if "budget" not in settings:
            if "budget_probability" in settings:
                raise InputError("--budget-probability needs --budget")
            if "loss_weight" not in settings:
                raise InputError("give --loss-weight (as in --loss-weight 5) or --budget (as in --budget 10)")
        if self.file is None:
            rules = Rules(**settings)
        else:
            where = f"{self.file} and the options beside it" if self.given else str(self.file)
            rules = Rules.from_dict(settings, where)
        known_here(rules.mechanism)
        return rules

    def sources(self, rules: Rules) -> list[str]:
        """The files that are read for these rules."""
        return [str(path) for path in (self.file, rules.past_reports) if path is not None]

    def files(self, rules: Rules) -> dict[Path, bytes]:
        """What --write-rules asks for."""
        return {} if self.written is None else {self.written: rules.to_toml().encode()}


def known_here(mechanism: str) -> str:
    """The name of a mechanism that the user wrote; a class of the user's own is imported."""
    if ":" in mechanism:
        import_mechanism(mechanism)
    return mechanism


def rule_flags(*names: str, file: bool = True, written: bool = False, **usual: Any) -> Flags:
    """Options for these settings, or else for all, with --rules and --write-rules where a command has them.

    `usual` is what the command takes where nothing is said; the help shows it.
    """
    hints = get_type_hints(Rules)
    defaults = {field.name: usual.get(field.name, field.default) for field in fields(Rules)}
    options = {name: _option(name, hints[name], defaults[name]) for name in names or defaults}
    if file:
        options[RULES_FILE] = _file_option(
            ECONOMY,
            "Read mechanism, prior, weights, caps and seed from this file; options beside it take the place of its "
            "settings.",
        )
    if written:
        options[WRITTEN_RULES] = _file_option(RESULT, "Write the rules that were used here, for --rules.")
    return Flags(options, _parsed)


def _file_option(panel: str, words: str) -> Any:
    return Annotated[Path | None, option(panel, words, metavar="FILE.toml")]


def _option(name: str, kind: Any, default: Any) -> Any:
    # The default stands in the help alone: an option that is not written leaves its setting to the file.
    shown = "" if default is None else f" \\[default: {default}]"
    panel = WEIGHTS if name in _WEIGHTS else ECONOMY
    least = 0 if name == "seed" else None
    return Annotated[kind | None, option(panel, _HELP[name] + shown, min=least)]


def _parsed(values: dict[str, Any]) -> RuleOptions:
    file, written = values.pop(RULES_FILE, None), values.pop(WRITTEN_RULES, None)
    given = {name: value for name, value in values.items() if value is not None}
    return RuleOptions(given=given, file=file, written=written)


Economy = Annotated[RuleOptions, rule_flags(written=True)]
