"""`jsam simulate`: from a mechanism, or a contract, to a trained model and a settled ledger."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource

from jsam.cli.options import ECONOMY, RESULT, EconomyOptions, MechanismName, refuse_columns, with_options
from jsam.cli.output import check_folder, deliver, progress_bar, say
from jsam.cli.running import (
    EXIT_VIOLATION,
    RoundProgress,
    require_torch,
    resumable,
    run_text,
    say_noise,
    settled,
    tracking,
    warnings_as_lines,
)
from jsam.cli.training_options import DATA, PartitionOptions, TrainingOptions, plain_values
from jsam.errors import InputError

if TYPE_CHECKING:
    from jsam.mechanism.contract import Contract
    from jsam.mechanism.families.base import RangeMechanism

EXAMPLES = """
[bold]Examples[/bold]

  jsam simulate --dataset mnist --mechanism jsam --budget 10 --noise-weight 200 --max-epsilon 10 --output runs/a

  jsam simulate --dataset digits --clients 20 --loss-weight 50 --rounds 30 --output runs/b

  jsam simulate --contract contract.json --dataset mnist --similarity 50 --output runs/c
"""

DEFAULT_PRIOR = "uniform:0,1"
PLANNING = (
    "mechanism", "prior", "loss_weight", "budget", "budget_probability", "noise_weight", "bias_weight",
    "max_selection_prob", "max_epsilon",
)  # fmt: skip


@with_options
def simulate(
    *,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A new folder for everything about the run.", rich_help_panel=RESULT)
    ],
    dataset: Annotated[str, typer.Option(help="mnist, cifar10 or digits.", rich_help_panel=DATA)] = "mnist",
    clients: Annotated[
        str, typer.Option(help="How many clients to simulate, or a CLIENTS.csv with reports.", rich_help_panel=DATA)
    ] = "100",
    model: Annotated[
        str | None, typer.Option(help="Model by name. \\[default: the data set's]", rich_help_panel=DATA)
    ] = None,
    contract: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Train under this contract (jsam plan --format json). It is planned already: no mechanism, prior, "
            "budget, weights or caps beside it.",
            rich_help_panel=ECONOMY,
        ),
    ] = None,
    mechanism: MechanismName = "jsam",
    economy: EconomyOptions,
    partition: PartitionOptions,
    training: TrainingOptions,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard files too.", rich_help_panel=RESULT)
    ] = False,
) -> None:
    """Plan a contract for simulated clients, train under it, settle the ledger and write a report.

    Give --loss-weight, --budget or --contract. Without --prior, reports are drawn from uniform:0,1.

    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    from jsam.runs.run_folder import RunFolder
    from jsam.runs.settings import TrainingSettings
    from jsam.training.data import load_dataset
    from jsam.training.environment import device_named
    from jsam.training.learning_rate import with_fitted_step
    from jsam.training.loop import train
    from jsam.training.task import TaskSpec

    settings = TrainingSettings(seed=economy.seed, **plain_values(training))
    device_named(settings.device)
    say_noise(settings)
    RunFolder(output).refuse_existing()
    check_folder(output)
    if contract is None and clients.isdigit() and int(clients) > 0:
        # Planning for a million clients takes minutes, only to hear that there are not as many samples.
        economy.check()
        shares = TaskSpec(dataset=dataset, num_clients=int(clients), seed=economy.seed, **plain_values(partition))
        shares.split(load_dataset(dataset))
    chosen = _contract(contract, clients, mechanism, economy)
    spec = TaskSpec(
        dataset=dataset,
        model=model,
        num_clients=chosen.num_clients,
        seed=economy.seed,
        **plain_values(partition),
    )
    with warnings_as_lines(), resumable(output), tracking(output, tensorboard) as tracker:
        task = spec.build()
        _check_sizes(task.partition.sizes)
        if training.learning_rate is None:
            settings = with_fitted_step(chosen, task, settings)
            say(f"a learning rate of {settings.learning_rate:g} fits the noise of this contract")
        with RoundProgress(f"Training ({chosen.mechanism})", settings.rounds) as progress:
            train(chosen, task, settings, output, progress=progress, tracker=tracker)
    finish(output, strict=settings.noise == "exact")


def finish(output: Path, *, strict: bool) -> None:
    """Settle and show; with Lemma 1's noise overspending is what was asked for, so it alone is said but no failure."""
    settlement, page = settled(output)
    deliver(run_text(output, settlement, page), None)
    if settlement.problems or (strict and not settlement.kept):
        raise typer.Exit(EXIT_VIOLATION)


def _contract(file: Path | None, clients: str, mechanism: str, economy: EconomyOptions) -> Contract:
    if file is not None:
        from jsam.mechanism.contract_files import load_contract

        for name in PLANNING:
            if _given(name):
                option = name.replace("_", "-")
                raise InputError(f"give --contract or --{option}, not both: a contract is already planned")
        planned_before = load_contract(file)
        if _given("clients") and clients != str(planned_before.num_clients):
            raise InputError(
                f"--clients is {clients} and contract {file} has {planned_before.num_clients} clients; leave --clients "
                "out, a contract names its own"
            )
        return planned_before
    economy.check()
    if clients.isdigit():
        return simulated_contract(mechanism, int(clients), economy)
    if _is_number(clients):
        raise InputError(f"--clients is {clients}; it must be a whole number of at least 1, or a CSV file")
    from jsam.cli.inputs import Inputs
    from jsam.cli.plan import planned

    inputs = Inputs.read(clients, dataclasses.replace(economy, prior=economy.prior or DEFAULT_PRIOR))
    return planned(inputs, mechanism, payments=True)[0]


def checked_planner(mechanism: str, num_clients: int, economy: EconomyOptions) -> RangeMechanism:
    """The mechanism; under a budget, whose sense is checked too, its loss weight is still to be set."""
    from jsam.mechanism.budget.loss_weight import check_budget
    from jsam.mechanism.registry import mechanism_named

    if num_clients < 1:
        raise InputError(f"--clients is {num_clients}; it must be at least 1")
    refuse_columns(mechanism, "simulated clients do not have (a CLIENTS.csv for --clients may)")
    if economy.budget is not None:
        check_budget(economy.budget, economy.budget_probability)
    settings: dict[str, Any] = {
        "loss_weight": 1.0 if economy.loss_weight is None else economy.loss_weight,
        "noise_weight": economy.noise_weight,
        "bias_weight": economy.bias_weight,
        "max_epsilon": economy.max_epsilon,
    }
    # A cap on p binds the mechanisms that choose p.
    if mechanism.startswith("jsam"):
        settings["max_selection_prob"] = economy.max_selection_prob
    planner = mechanism_named(mechanism, **settings)
    if planner.max_selection_prob is not None:
        planner.rule(num_clients)  # refuses a cap under which so many clients cannot share all draws
    return planner


def simulated_contract(mechanism: str, num_clients: int, economy: EconomyOptions, label: str = "") -> Contract:
    """A contract for clients whose reports are drawn from the prior."""
    from jsam.mechanism.budget.loss_weight import loss_weight_for_budget
    from jsam.mechanism.families import plan
    from jsam.mechanism.market import Market
    from jsam.mechanism.priors import parse_prior
    from jsam.runs.drawn_sensitivities import draw_sensitivities

    planner = checked_planner(mechanism, num_clients, economy)
    prior = parse_prior(economy.prior or DEFAULT_PRIOR)
    if economy.budget is not None:
        with progress_bar(f"Budget of {label or mechanism}", after=0.3) as bar:
            bought = loss_weight_for_budget(
                planner,
                economy.budget,
                prior=prior,
                num_clients=num_clients,
                probability=economy.budget_probability,
                seed=economy.seed,
                progress=bar.reach,
            )
        planner = planner.with_loss_weight(bought.loss_weight)
    market = Market(sensitivities=draw_sensitivities(prior, num_clients, economy.seed), prior=prior)
    with progress_bar(f"Payments of {label or mechanism}", num_clients, after=0.3) as bar:
        contract = plan(market, planner, progress=bar.advance)
    return dataclasses.replace(contract, budget=economy.budget)


def _given(option: str) -> bool:
    """Whether the user wrote it: a default cannot contradict a contract, the same value written out can."""
    return click.get_current_context().get_parameter_source(option) not in (None, ParameterSource.DEFAULT)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_sizes(sizes: tuple[int, ...]) -> None:
    if min(sizes) != max(sizes):
        say(
            f"warning: clients hold {min(sizes)} to {max(sizes)} samples; the plan treats all of them alike, noise and "
            "accounting do not"
        )
