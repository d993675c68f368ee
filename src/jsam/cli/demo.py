"""`jsam demo`: everything on one machine, from reports over contracts and training to a settled ledger."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jsam.cli.demo_screen import Outcome, show, verdict
from jsam.cli.inputs import Inputs
from jsam.cli.options import RESULT, examples, option, with_options
from jsam.cli.output import EXIT_VIOLATION, check_folder, free_folder, require_torch, say
from jsam.cli.rule_options import MAX_EPSILON, OpenRules, RuleOptions, rule_flags
from jsam.cli.running import say_noise, settled, trained, warnings_as_lines
from jsam.cli.training_options import NoiseSeed
from jsam.errors import InputError
from jsam.mechanism.rules import AUTO

if TYPE_CHECKING:
    from jsam.mechanism.contract import Contract
    from jsam.mechanism.rules import Rules
    from jsam.runs.settings import TrainingSettings
    from jsam.training.automatic import TaskWeights
    from jsam.training.data import Dataset
    from jsam.training.task import TaskSpec

EXAMPLES = examples(
    "jsam demo",
    "jsam demo --budget 20 --seed 3 --output runs/demo-20",
    "jsam demo --rules rules.toml --dataset digits",
)

MECHANISMS = ("jsam-even", "jsam", "usbm")
# The paper leaves Q open. Under its own measure of bias this one trained best of those tried.
NOISE_WEIGHT_OF_THE_PAPER = 200.0
PER_ROUND, CLIP_NORM, SIMILARITY = 5, 1.0, 50.0
USUAL: dict[str, Any] = {"prior": "uniform:0,1", "budget": 10.0, "seed": 1}


@dataclass(frozen=True, kw_only=True)
class DemoPreset:
    """What the demonstration runs; the numbers were chosen so that it trains, and in under three minutes."""

    dataset: str
    num_clients: int
    rounds: int


MNIST = DemoPreset(dataset="mnist", num_clients=100, rounds=100)
DIGITS = DemoPreset(dataset="digits", num_clients=10, rounds=60)


@with_options
def demo(
    *,
    output: Annotated[
        Path,
        option(
            RESULT,
            "Where everything goes; where a demo is already, the next free name (out/demo-2).",
            metavar="FOLDER",
        ),
    ] = Path("out/demo"),
    economy: Annotated[
        RuleOptions,
        rule_flags("budget", "max_selection_prob", "max_epsilon", "seed", **USUAL, max_epsilon=MAX_EPSILON),
    ],
    rounds: Annotated[int | None, option(None, "Rounds of training. \\[default: as tuned]")] = None,
    noise_seed: NoiseSeed = None,
    dataset: Annotated[
        str, option(None, "mnist, or digits, which needs no download and is used if MNIST cannot be had.")
    ] = "mnist",
) -> None:
    """Clients report, three mechanisms buy their privacy for the same expected cost, and each trains on what it bought:
    jsam-even, the paper's jsam, and usbm, which selects without bias.

    Contract, training, ledger, audit, comparison: a screen at the end, and a report page. Under three minutes.
    Settings of --rules hold for all three. It must have a budget or leave it out, and name no other mechanism. Each
    mechanism's folder has the rules that were used, in rules.toml.

    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    from jsam.report.comparison_html import write_comparison_page
    from jsam.runs.settings import TrainingSettings
    from jsam.training.automatic import TaskWeights
    from jsam.training.task import TaskSpec

    began = time.monotonic()
    check_folder(output)
    open_rules = _open_rules(economy)
    rules = open_rules.rules
    preset, data, notes = _data(dataset)
    settings = TrainingSettings(
        rounds=preset.rounds if rounds is None else rounds,
        per_round=PER_ROUND,
        clip_norm=CLIP_NORM,
        learning_rate_schedule="cosine",
        evaluate_every=10,
        seed=rules.seed,
        noise_seed=noise_seed,
        # On a busy machine two threads that wait for each other were seen to take twice as long as one.
        threads=1,
    )
    say_noise(settings)
    spec = TaskSpec(
        dataset=preset.dataset,
        num_clients=preset.num_clients,
        scheme="similarity",
        similarity=SIMILARITY,
        seed=rules.seed,
    )
    clients = Inputs.drawn(preset.num_clients, rules)
    asked, output = output, free_folder(output, _holds_demo)
    if output != asked:
        say(f"{asked} is there already; this goes to {output}")
    names = ", ".join(MECHANISMS)
    if economy.file is not None:
        say(f"the settings of {economy.file} hold for all of {names}, and not only for its mechanism {rules.mechanism}")
    who = f"{preset.num_clients} clients report, {names} plan for an expected cost of {rules.budget:g}"
    say(f"1/3  Planning: {who}")
    outcomes = []
    with _interruptible(output):
        task = spec.build(dataset=data)
        weights = TaskWeights.of(spec, task.partition, data, settings, num_parameters=task.num_parameters)
        closed = open_rules.closed(weights)
        others = _rules_of_others(open_rules, closed)
        questions = [
            replace(clients, rules=closed if name == MECHANISMS[0] else others).under(name) for name in MECHANISMS
        ]
        contracts = [question.contract()[0] for question in questions]
        for question, contract in zip(questions, contracts, strict=True):
            name = contract.mechanism
            say(f"2/3  Training under {name}: {contract.num_selected} clients sell ε, {settings.rounds} rounds")
            outcomes.append(_outcome(contract, question.rules, spec, data, settings, output / name))
    say("3/3  Writing the report")
    headline, closing = verdict(outcomes, data.num_test)
    closing += _weights_in_words(open_rules, closed, others, weights)
    page = output / "report.html"
    write_comparison_page([part.folder for part in outcomes], page, headline=headline, notes=[*notes, *closing])
    show(outcomes, page, headline, [*notes, *closing], time.monotonic() - began)
    if not all(part.settlement.kept for part in outcomes):
        raise typer.Exit(EXIT_VIOLATION)


def _open_rules(economy: RuleOptions) -> OpenRules:
    """The rules of all mechanisms; refused are those of a file under which the three cannot be compared."""
    open_rules = economy.open_rules(**USUAL)
    rules, names = open_rules.rules, ", ".join(MECHANISMS)
    if rules.mechanism not in MECHANISMS:
        raise InputError(
            f"{economy.file}: mechanism is {rules.mechanism!r}, and the demo compares {names}; leave mechanism out, or"
            " use jsam simulate"
        )
    for name in ("loss_weight", "budget_probability"):
        if getattr(rules, name) is not None:
            beside = ", or give --budget beside the file" if name == "loss_weight" else ""
            raise InputError(
                f"{economy.file}: the demo compares mechanisms at one expected cost, which {name} does not fix; leave"
                f" it out{beside}, or use jsam simulate"
            )
    return open_rules


def _rules_of_others(open_rules: OpenRules, closed: Rules) -> Rules:
    """The rules of all mechanisms but the first: the paper's weights in place of those that follow from the task."""
    instead: dict[str, Any] = {}
    if open_rules.noise_weight:
        instead["noise_weight"] = NOISE_WEIGHT_OF_THE_PAPER
    if open_rules.heterogeneity == AUTO:
        instead["heterogeneity"] = None
    return replace(closed, **instead)


def _weights_in_words(open_rules: OpenRules, closed: Rules, others: Rules, task: TaskWeights) -> list[str]:
    """What each mechanism weighs noise and the difference among clients by, and where that comes from."""
    own, noise = f"{MECHANISMS[0]} weighs", f"All weigh noise by Q = {closed.noise_weight:g}."
    if open_rules.noise_weight:
        noise = f"{own} noise by Q = {task.noise.words}; this follows from the task. The others have Q = "
        noise += f"{others.noise_weight:g}."
    differ = closed.heterogeneity or f"a bias weight of {closed.bias_weight:g}"
    if open_rules.heterogeneity == AUTO:
        paper = f"The others have a bias weight of {others.bias_weight:g}."
        return [noise, f"{own} how clients differ by {differ}; this follows from the task. {paper}"]
    return [noise, f"All weigh how clients differ by {differ}."]


def _data(dataset: str) -> tuple[DemoPreset, Dataset, list[str]]:
    from jsam.cli.data import fetched
    from jsam.training.data import MissingDataError, load_dataset

    presets = {preset.dataset: preset for preset in (MNIST, DIGITS)}
    if dataset not in presets:
        raise InputError(f"--dataset is {dataset!r}; the demo knows {' and '.join(presets)}")
    notes = []
    if dataset == "mnist":
        try:
            fetched("mnist")
            return MNIST, load_dataset("mnist"), []
        except MissingDataError as error:
            say(f"warning: {error}")
            say("warning: going on with the small digits of scikit-learn instead of MNIST")
            notes.append(
                "MNIST could not be had, so this is scikit-learn's digits: 1,500 images, far fewer than MNIST's 60,000."
            )
    return DIGITS, load_dataset("digits"), notes


def _holds_demo(folder: Path) -> bool:
    from jsam.runs.run_folder import RunFolder

    return any(RunFolder(folder / name).config.exists() for name in MECHANISMS)


@contextlib.contextmanager
def _interruptible(output: Path) -> Iterator[None]:
    """Tell the one who presses Ctrl-C that a demo is not gone on with, but the training under way can be."""
    from jsam.runs.run_folder import RunFolder

    try:
        yield
    except KeyboardInterrupt:
        runs = [RunFolder(output / name) for name in MECHANISMS]
        begun = [run.path for run in runs if run.config.exists() and not run.summary.exists()]
        alone = "".join(f"; go on with this training alone: jsam resume {path}" for path in begun)
        say(f"interrupted; jsam demo starts anew{alone}")
        raise


def _outcome(
    contract: Contract, rules: Rules, spec: TaskSpec, data: Dataset, settings: TrainingSettings, folder: Path
) -> Outcome:
    from jsam.training.learning_rate import fitted_plan

    task = spec.build(dataset=data)
    # Each mechanism with the step that fits its own noise: one step for all would favour somebody.
    noise = fitted_plan(contract, task, settings)
    with warnings_as_lines():
        result = trained(noise, task, folder, rules=rules)
    settlement, _ = settled(folder)
    return Outcome(
        contract=contract, folder=folder, accuracy=result.accuracy, settlement=settlement, seconds=result.seconds
    )
