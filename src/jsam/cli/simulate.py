"""`jsam simulate`: from a mechanism, or a contract, to a trained model and a settled ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from jsam.cli.label_counts import bought_counts, charges_named
from jsam.cli.options import ECONOMY, RESULT, TensorBoardFlag, examples, option, with_options
from jsam.cli.output import check_folder, require_torch, say
from jsam.cli.rule_options import MAX_EPSILON, RULES_FILE, RuleOptions, rule_flags
from jsam.cli.running import (
    FEATURES_LABEL,
    counting,
    finish,
    resumable,
    say_noise,
    tracking,
    trained,
    warnings_as_lines,
)
from jsam.cli.simulated import Planned, Reporting, Simulated, asked
from jsam.cli.training_options import DATA, PartitionOptions, TrainingOptions
from jsam.errors import InputError
from jsam.mechanism.rules import AUTO

EXAMPLES = examples(
    "jsam simulate --dataset mnist --budget 10 --similarity 50 --output runs/a",
    "jsam simulate --dataset mnist --rules runs/a/rules.toml --mechanism usbm --output runs/b",
    "jsam simulate --dataset digits --clients 20 --loss-weight 50 --rounds 30 --output runs/c",
    "jsam simulate --contract contract.json --dataset mnist --similarity 50 --output runs/d",
    "jsam simulate --dataset mnist --loss-weight 20 --sizes lognormal:1.0 --output runs/e",
)

DEFAULT_CLIENTS, DEFAULT_PRIOR = "100", "uniform:0,1"
FEW = 3  # whoever is one of fewer is most of what the model learns


@with_options
def simulate(
    *,
    output: Annotated[Path, option(RESULT, "A new folder for everything about the run.", metavar="FOLDER")],
    dataset: Annotated[str, option(DATA, "mnist, cifar10 or digits.")] = "mnist",
    clients: Annotated[
        str | None,
        option(DATA, f"How many clients to simulate, or a CLIENTS.csv with reports. \\[default: {DEFAULT_CLIENTS}]"),
    ] = None,
    model: Annotated[
        str | None,
        option(
            DATA,
            "mnist, cifar10, digits, linear, scatter-linear, or a package's model. \\[default: the data set's]",
        ),
    ] = None,
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

    Give --loss-weight, --budget, --rules or --contract. The plan uses the numbers of samples that clients hold. The
    rules that were used are in rules.toml of the folder.

    Exit codes: 0 done, 1 a client is over its contract, 2 bad input (one line on standard error).
    """
    require_torch()
    from jsam.runs.noise_plan import NoisePlan
    from jsam.runs.run_folder import RunFolder
    from jsam.runs.settings import TrainingSettings
    from jsam.training.automatic import TaskWeights
    from jsam.training.data import load_dataset
    from jsam.training.environment import device_named
    from jsam.training.learning_rate import fitted_plan
    from jsam.training.task import TaskSpec

    open_rules = None if contract is not None else economy.open_rules(asks_labels=True, prior=DEFAULT_PRIOR)
    seed = economy.given.get("seed", 0) if open_rules is None else open_rules.rules.seed
    settings = TrainingSettings(seed=seed, **training)
    device_named(settings.device)
    say_noise(settings)
    RunFolder(output).refuse_existing()
    check_folder(output)
    if open_rules is None:
        assert contract is not None
        simulated: Simulated = _stored(contract, clients, economy)
    else:
        open_rules.check_label_cap(settings.delta)
        simulated = asked(clients or _as_many(partition), open_rules.rules)
    # Planning for a million clients takes minutes, only to hear that there are not as many samples.
    data = load_dataset(dataset)
    held = simulated.held(partition, data.num_train)
    spec = TaskSpec(dataset=dataset, model=model, num_clients=simulated.num_clients, seed=seed, **held)
    with counting(FEATURES_LABEL) as progress:
        task = spec.build(dataset=data, device=settings.device, progress=progress)
    rules, survey, labels = None, None, None
    with charges_named(output) as bought:
        if open_rules is not None:
            weights = TaskWeights.of(spec, task.partition, data, settings, num_parameters=task.num_parameters)
            if open_rules.label_epsilon is not None:
                assert isinstance(simulated, Reporting)
                survey = bought_counts(simulated, open_rules, weights, task, settings, output)
                labels = survey.labels
                bought.append(labels)
            rules = open_rules.closed(weights, labels, settings.delta)
            simulated = simulated.under(rules)
        agreed = simulated.contract(task.partition.sizes)
        if open_rules is not None and rules is not None:
            economy.say_mechanism(rules)
            open_rules.say_weights(rules, weights, labels)
            if agreed.num_selected < FEW <= agreed.num_clients:
                say(
                    f"warning: {agreed.num_selected} of {agreed.num_clients} clients are drawn, and the model learns"
                    f" from nobody else; --min-clients {FEW} demands more"
                )
        with warnings_as_lines(), resumable(output), tracking(output, tensorboard) as tracker:
            if "learning_rate" in training:
                noise = NoisePlan.of(agreed, settings, task.partition.sizes)
            else:
                noise = fitted_plan(agreed, task, settings)
                say(f"a learning rate of {noise.settings.learning_rate:g} fits the noise of this contract")
            trained(noise, task, output, rules=rules, survey=survey, tracker=tracker)
    finish(output, strict=settings.rule_of_noise.keeps_contracts)


def _as_many(partition: dict[str, Any]) -> str:
    """As many clients as a file of sizes has, or the usual number."""
    sizes = partition.get("sizes")
    return str(len(sizes)) if isinstance(sizes, tuple) else DEFAULT_CLIENTS


def _stored(file: Path, clients: str | None, economy: RuleOptions) -> Planned:
    """The clients of a stored contract; what would be planned anew is refused."""
    for name in [*economy.given, *([] if economy.file is None else [RULES_FILE])]:
        if name != "seed":
            raise InputError(f"give --contract or --{name.replace('_', '-')}, not both: a contract is already planned")
    planned = Planned(file=file)
    if clients is not None and clients != str(planned.num_clients):
        raise InputError(
            f"--clients is {clients} and contract {file} has {planned.num_clients} clients; leave --clients "
            "out, a contract names its own"
        )
    return planned
