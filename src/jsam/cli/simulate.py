"""`jsam simulate`: from a mechanism, or a contract, to a trained model and a settled ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from jsam.cli.inputs import Inputs
from jsam.cli.options import ECONOMY, RESULT, TensorBoardFlag, examples, option, with_options
from jsam.cli.output import check_folder, require_torch, say
from jsam.cli.rule_options import AUTO, MAX_EPSILON, RULES_FILE, RuleOptions, rule_flags
from jsam.cli.running import finish, resumable, say_noise, tracking, trained, warnings_as_lines
from jsam.cli.training_options import DATA, PartitionOptions, TrainingOptions
from jsam.errors import InputError

if TYPE_CHECKING:
    from jsam.mechanism.contract import Contract
    from jsam.mechanism.rules import Rules

EXAMPLES = examples(
    "jsam simulate --dataset mnist --budget 10 --similarity 50 --output runs/a",
    "jsam simulate --dataset mnist --rules runs/a/rules.toml --mechanism usbm --output runs/b",
    "jsam simulate --dataset digits --clients 20 --loss-weight 50 --rounds 30 --output runs/c",
    "jsam simulate --contract contract.json --dataset mnist --similarity 50 --output runs/d",
)

DEFAULT_CLIENTS, DEFAULT_PRIOR = "100", "uniform:0,1"

Planner = Callable[["Rules | None"], "Contract"]  # under these rules, if it needs any


@with_options
def simulate(
    *,
    output: Annotated[Path, option(RESULT, "A new folder for everything about the run.", metavar="FOLDER")],
    dataset: Annotated[str, option(DATA, "mnist, cifar10 or digits.")] = "mnist",
    clients: Annotated[
        str | None,
        option(DATA, f"How many clients to simulate, or a CLIENTS.csv with reports. \\[default: {DEFAULT_CLIENTS}]"),
    ] = None,
    model: Annotated[str | None, option(DATA, "Model by name. \\[default: the data set's]")] = None,
    contract: Annotated[
        Path | None,
        option(
            ECONOMY,
            "Train under this contract (jsam plan --format json). It is planned already: no mechanism, prior, "
            "budget, weights or caps beside it.",
            metavar="FILE",
        ),
    ] = None,
    economy: Annotated[RuleOptions, rule_flags(prior=DEFAULT_PRIOR, noise_weight=AUTO, max_epsilon=MAX_EPSILON)],
    partition: PartitionOptions,
    training: TrainingOptions,
    tensorboard: TensorBoardFlag = False,
) -> None:
    """Plan a contract for simulated clients, train under it, settle the ledger and write a report.

    Give --loss-weight, --budget, --rules or --contract. The rules that were used are in rules.toml of the folder.

    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    from jsam.runs.noise_plan import NoisePlan
    from jsam.runs.run_folder import RunFolder
    from jsam.runs.settings import TrainingSettings
    from jsam.training.automatic import TaskWeights
    from jsam.training.environment import device_named
    from jsam.training.learning_rate import fitted_plan
    from jsam.training.task import TaskSpec

    open_rules = None if contract is not None else economy.open_rules(prior=DEFAULT_PRIOR)
    seed = economy.given.get("seed", 0) if open_rules is None else open_rules.rules.seed
    settings = TrainingSettings(seed=seed, **training)
    device_named(settings.device)
    say_noise(settings)
    RunFolder(output).refuse_existing()
    check_folder(output)
    if open_rules is None:
        assert contract is not None
        num_clients, plan = _stored(contract, clients, economy)
    else:
        num_clients, plan = _asked(clients or DEFAULT_CLIENTS, open_rules.rules)
    # Planning for a million clients takes minutes, only to hear that there are not as many samples.
    spec = TaskSpec(dataset=dataset, model=model, num_clients=num_clients, seed=seed, **partition)
    task = spec.build()
    rules = None
    if open_rules is not None:
        economy.say_mechanism(open_rules.rules)
        size = task.num_parameters
        rules = open_rules.closed(TaskWeights.of(spec, task.partition, task.dataset, settings, num_parameters=size))
    agreed = plan(rules)
    _check_sizes(task.partition.sizes)
    with warnings_as_lines(), resumable(output), tracking(output, tensorboard) as tracker:
        if "learning_rate" in training:
            noise = NoisePlan.of(agreed, settings, task.partition.sizes)
        else:
            noise = fitted_plan(agreed, task, settings)
            say(f"a learning rate of {noise.settings.learning_rate:g} fits the noise of this contract")
        trained(noise, task, output, rules=rules, tracker=tracker)
    finish(output, strict=settings.rule_of_noise.keeps_contracts)


def _stored(file: Path, clients: str | None, economy: RuleOptions) -> tuple[int, Planner]:
    """How many clients a stored contract has, and what gives it."""
    from jsam.mechanism.contract_files import load_contract

    for name in [*economy.given, *([] if economy.file is None else [RULES_FILE])]:
        if name != "seed":
            raise InputError(f"give --contract or --{name.replace('_', '-')}, not both: a contract is already planned")
    contract = load_contract(file)
    if clients is not None and clients != str(contract.num_clients):
        raise InputError(
            f"--clients is {clients} and contract {file} has {contract.num_clients} clients; leave --clients "
            "out, a contract names its own"
        )
    return contract.num_clients, lambda rules: contract


def _asked(clients: str, rules: Rules) -> tuple[int, Planner]:
    """How many clients there will be, and what plans for them under the rules that the task makes of these."""
    if clients.isdigit():
        num_clients = int(clients)
        return num_clients, lambda closed: Inputs.drawn(num_clients, closed or rules).contract()[0]
    if _is_number(clients):
        raise InputError(f"--clients is {clients}; it must be a whole number of at least 1, or a CSV file")
    inputs = Inputs.read(clients, rules)
    return inputs.market.num_clients, lambda closed: replace(inputs, rules=closed or rules).contract()[0]


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
