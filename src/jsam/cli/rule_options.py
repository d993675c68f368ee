"""The options that stand for `Rules`: made from its own fields, alone or over a file that --rules names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import click

from jsam.cli.options import ECONOMY, RESULT, WEIGHTS, Flags, option
from jsam.cli.output import say
from jsam.errors import InputError
from jsam.mechanism.halves import HALVES
from jsam.mechanism.heterogeneity import HISTOGRAM, with_records
from jsam.mechanism.registry import import_mechanism, mechanism_names
from jsam.mechanism.rules import AUTO, Rules, merged, read_settings

if TYPE_CHECKING:
    from jsam.runs.label_counts import LabelCounts
    from jsam.training.automatic import TaskWeights

RULES_FILE, WRITTEN_RULES = "rules", "write_rules"

FROM_DATA, NONE = "from-data", "none"
MAX_EPSILON = 10.0  # where a command trains: a larger ε protects hardly anybody

_HELP = {
    "mechanism": f"{'  '.join(mechanism_names())}, with a number of clients for M and of types for K, or a class "
    "of your own, package.module:Class (not in campaigns, whose clients must know it).",
    "prior": "What is known about sensitivities before anybody reports: uniform:0,1  beta:2,5 "
    " lognorm:s=0.5,scale=0.3  truncnorm:a=-2,b=2,loc=0.5,scale=0.2 (any continuous scipy.stats distribution) "
    " or empirical:PAST.csv; or halves: two halves of the clients are planned apart, each with a prior learned from "
    "the other one's reports.",
    "loss_weight": "How much a unit of the loss bound matters against a unit of money. Give this or --budget.",
    "budget": "What may be spent. It becomes a loss weight before any report is read.",
    "budget_probability": "Keep the payments within the budget with this probability, instead of the cost in "
    "expectation.",
    "noise_weight": "Weight of the privacy noise in the loss bound; auto, where a command trains, takes it from the "
    "model and the amount of data.",
    "bias_weight": "Weight of the selection bias in the loss bound.",
    "max_selection_prob": "No client is selected with more than this probability.",
    "max_epsilon": "No client sells more ε than this; none lifts the cap.",
    "min_clients": "Keep at least so many clients.",
    "min_selection_prob": "Whoever is kept is selected with at least this probability.",
    "heterogeneity": "How much clients' data differ, ζ²: a number, alike, classes:2/10, dirichlet:0.5/10 or "
    "similarity:30, with the records of a client behind another / (alike:600 for alike; 1,000 if nothing says it); "
    "from-data, in simulations, looks at the labels; histogram:0.5, in jsam simulate, buys noisy counts of them from "
    "each client at that ε. It takes the place of --bias-weight.",
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
        settings = self._settings(usual)
        for name, word in (("noise_weight", AUTO), ("heterogeneity", FROM_DATA)):
            if settings.get(name) == word:
                raise InputError(
                    f"--{name.replace('_', '-')} {word} needs a model and data (jsam simulate); give a number"
                )
        if _label_epsilon(settings.get("heterogeneity")) is not None:
            raise InputError(
                f"--heterogeneity {settings['heterogeneity']} asks clients for counts of their labels, so it needs data"
                " (jsam simulate); give a number or a text such as classes:2/10"
            )
        rules = self._checked(settings)
        if rules.heterogeneity is not None and "noise_weight" not in settings:
            say(
                "warning: the noise weight is 1, which no model has beside --heterogeneity; at δ = 1e-5 it is 23 · D/M²"
                " for D parameters and M records of a client, as in --noise-weight 1.66 for 26,010 and 600"
            )
        return rules

    def open_rules(self, *, asks_labels: bool = False, **usual: Any) -> OpenRules:
        """The rules of a command that trains. What nobody gave of the weights follows from its task.

        `asks_labels` says that the command can buy label counts of clients.
        """
        cap = {} if self.file is not None else {"max_epsilon": MAX_EPSILON}
        settings = self._settings({"noise_weight": AUTO, **cap, **usual})
        heterogeneity = settings.get("heterogeneity", None if "bias_weight" in settings else AUTO)
        label_epsilon = _label_epsilon(heterogeneity)
        if label_epsilon is not None:
            if not asks_labels:
                raise InputError(
                    f"--heterogeneity {heterogeneity} is there for jsam simulate alone, campaigns do not have it"
                    " yet; give a number or a text such as classes:2/10"
                )
            if settings.get("prior") == HALVES:
                raise InputError(
                    f"--heterogeneity {heterogeneity} is paid by a prior that is known before the reports; prior"
                    f" {HALVES} is learned from them"
                )
        automatic = heterogeneity if heterogeneity in (AUTO, FROM_DATA) or label_epsilon is not None else None
        if automatic:
            settings.pop("heterogeneity", None)
        noise_waits = settings["noise_weight"] == AUTO
        if noise_waits:
            del settings["noise_weight"]
        if settings.get("lot") is not None and (noise_waits or automatic):
            raise InputError("--lot counts noise and bias by lots: give --noise-weight and --bias-weight as numbers")
        usual_cap = bool(cap) and "max_epsilon" not in self.given
        rules = self._checked(settings)
        if label_epsilon is not None:
            replace(rules, heterogeneity="1")  # what does not go with ζ² is refused before anybody is charged for it
        return OpenRules(
            rules=rules,
            noise_weight=noise_waits,
            heterogeneity=automatic,
            label_epsilon=label_epsilon,
            usual_cap=usual_cap,
        )

    def _settings(self, usual: Mapping[str, Any]) -> dict[str, Any]:
        if self.given.get("loss_weight") is not None and self.given.get("budget") is not None:
            raise InputError("give --loss-weight or --budget, not both: a budget determines the loss weight")
        stored = {} if self.file is None else read_settings(self.file)
        settings = merged(usual, stored, self.given)
        if settings.get("max_epsilon") == math.inf:
            del settings["max_epsilon"]
        if "budget" not in settings:
            if "budget_probability" in settings:
                raise InputError("--budget-probability needs --budget")
            if "loss_weight" not in settings:
                raise InputError("give --loss-weight (as in --loss-weight 5) or --budget (as in --budget 10)")
        return settings

    def _checked(self, settings: Mapping[str, Any]) -> Rules:
        if self.file is None:
            rules = Rules(**settings)
        else:
            where = f"{self.file} and the options beside it" if self.given else str(self.file)
            rules = Rules.from_dict(settings, where)
        known_here(rules.mechanism)
        return rules

    def why(self, rules: Rules) -> str | None:
        """Which of the two mechanisms that everybody must know apart is used, and why; None if it is another."""
        words = {
            "jsam-even": "the cheapest clients, drawn evenly",
            "jsam": "the paper's; the default is jsam-even",
        }
        if rules.mechanism not in words:
            return None
        asked = "as --mechanism says" if "mechanism" in self.given else f"as {self.file} says"
        why = asked if "mechanism" in self.given or self.file is not None else "the default"
        return f"{rules.mechanism}, {why}: {words[rules.mechanism]}"

    def say_mechanism(self, rules: Rules) -> None:
        """Say it, where the result itself has no place for it."""
        if why := self.why(rules):
            say(f"mechanism {why}")

    def sources(self, rules: Rules) -> list[str]:
        """The files that are read for these rules."""
        return [str(path) for path in (self.file, rules.past_reports) if path is not None]

    def files(self, rules: Rules) -> dict[Path, bytes]:
        """What --write-rules asks for."""
        return {} if self.written is None else {self.written: rules.to_toml().encode()}


@dataclass(frozen=True, kw_only=True)
class OpenRules:
    """Rules of a command that trains, with stand-ins for the weights that follow from model and data."""

    rules: Rules
    noise_weight: bool  # whether it waits
    heterogeneity: str | None  # auto, from-data or a histogram, if it waits
    label_epsilon: float | None = None  # the ε of a histogram
    usual_cap: bool  # whether nobody gave the cap on ε

    def closed(self, task: TaskWeights, labels: LabelCounts | None = None, delta: float = 0.0) -> Rules:
        """The rules with the weights of a task; with those of label counts that were bought, if it is they that tell.

        The cap on ε is then for both together at `delta`: what is left of it is for the training.
        """
        instead: dict[str, Any] = {}
        if self.noise_weight:
            instead["noise_weight"] = task.noise.value
        if labels is not None:
            from jsam.privacy import left_for_training

            instead["heterogeneity"] = f"{labels.heterogeneity:.6g}"
            if self.rules.max_epsilon is not None:
                instead["max_epsilon"] = left_for_training(self.rules.max_epsilon, labels.epsilon, delta)
        elif self.heterogeneity is not None:
            measured = f"{task.measured_heterogeneity:.6g}"
            instead["heterogeneity"] = measured if self.heterogeneity == FROM_DATA else task.known_heterogeneity
        elif self.rules.heterogeneity is not None:
            instead["heterogeneity"] = with_records(self.rules.heterogeneity, round(task.noise.samples))
        return replace(self.rules, **instead)

    def check_label_cap(self, delta: float) -> None:
        """Refuse an ε of label counts beside which nothing is left under the cap, or that might be paid too little."""
        from jsam.privacy import left_for_training
        from jsam.privacy.label_counts import MOST_DELTA

        most, asked = self.rules.max_epsilon, self.label_epsilon
        if asked is not None and delta > MOST_DELTA:
            raise InputError(
                f"--delta is {delta:g}; beside label counts it must be {MOST_DELTA:g} or less, since above it two"
                " releases may cost more ε together than each alone"
            )
        if most is not None and asked is not None and not left_for_training(most, asked, delta) > 0:
            raise InputError(
                f"--heterogeneity {self.heterogeneity} takes ε = {asked:g} of every client, and nobody sells more than"
                f" {most:g} in all; take a smaller one, or raise --max-epsilon"
            )

    def say_weights(self, closed: Rules, task: TaskWeights, labels: LabelCounts | None = None) -> None:
        """Say which weights followed from the task, with their parts, and which cap holds though nobody gave it."""
        if self.noise_weight:
            say(f"noise weight {task.noise.words}; --noise-weight gives another")
        if self.noise_weight and closed.mechanism == "jsam":
            say("the paper leaves the weights of jsam open; these are made for jsam-even")
        if labels is not None:
            say(f"heterogeneity from label counts with noise: {labels.words}")
        elif self.heterogeneity is not None:
            looked = self.heterogeneity == FROM_DATA
            where = "from the labels, which only a simulation may look at" if looked else "as the data are dealt out"
            say(f"heterogeneity {closed.heterogeneity}: ζ² = {closed.zeta**2:.4g} ({where})")
        if labels is not None and closed.max_epsilon is not None:
            lifted = "; --max-epsilon none lifts this cap" if self.usual_cap else ""
            say(
                f"no client sells more than ε = {self.rules.max_epsilon:g} in all, {closed.max_epsilon:.6g} of it in"
                f" training{lifted}"
            )
        elif self.usual_cap:
            say(f"no client sells more than ε = {closed.max_epsilon:g}; --max-epsilon none lifts this cap")


def _label_epsilon(text: object) -> float | None:
    """The ε of a histogram of labels, where the text asks for one."""
    if not isinstance(text, str) or not text.startswith(HISTOGRAM):
        return None
    from jsam.privacy.label_counts import LEAST_EPSILON, MOST_EPSILON

    try:
        epsilon = float(text.removeprefix(HISTOGRAM))
    except ValueError:
        epsilon = math.nan
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise InputError(
            f"--heterogeneity is {text}; behind the colon must be an ε from {LEAST_EPSILON} to {MOST_EPSILON:g},"
            " as in histogram:0.5"
        )
    return epsilon


def known_here(mechanism: str) -> str:
    """The name of a mechanism that the user wrote; a class of the user's own is imported."""
    if ":" in mechanism:
        import_mechanism(mechanism)
    return mechanism


def rule_flags(*names: str, written: bool = False, **usual: Any) -> Flags:
    """Options for these settings, or else for all, with --rules, and with --write-rules where a command has it.

    `usual` is what the command takes where nothing is said; the help shows it.
    """
    hints = get_type_hints(Rules)
    defaults = {field.name: usual.get(field.name, field.default) for field in fields(Rules)}
    options = {name: _option(name, hints[name], defaults[name]) for name in names or defaults}
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
    words = _HELP[name] + shown
    if name in _SPELLED:
        return Annotated[Any, option(panel, words, parser=_SPELLED[name], metavar=f"FLOAT|{_WORD[name]}")]
    return Annotated[kind | None, option(panel, words, min=0 if name == "seed" else None)]


def _number_or(word: str, meaning: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text == word:
            return meaning
        try:
            return float(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is neither a number nor {word}.") from None

    return read


_WORD = {"noise_weight": AUTO, "max_epsilon": NONE}
_SPELLED = {"noise_weight": _number_or(AUTO, AUTO), "max_epsilon": _number_or(NONE, math.inf)}


def _parsed(values: dict[str, Any]) -> RuleOptions:
    file, written = values.pop(RULES_FILE, None), values.pop(WRITTEN_RULES, None)
    given = {name: value for name, value in values.items() if value is not None}
    return RuleOptions(given=given, file=file, written=written)


Economy = Annotated[RuleOptions, rule_flags(written=True)]
