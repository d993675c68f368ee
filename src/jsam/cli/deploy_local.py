"""`jsam deploy-local`: a Flower federation of real processes on this machine, from reports to settled accounts."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jsam.cli.inputs import check_without_file
from jsam.cli.options import ECONOMY, RESULT, examples, option, with_options
from jsam.cli.output import (
    EXIT_BAD_INPUT,
    EXIT_VIOLATION,
    PageFormat,
    deliver,
    fail,
    free_folder,
    rendered,
    require_flower,
    say,
    unusable_folder,
)
from jsam.cli.rule_options import MAX_EPSILON, RuleOptions, rule_flags
from jsam.cli.running import RoundProgress
from jsam.cli.training_options import SIZES_METAVAR, SIZES_WORDS, law_or_sizes
from jsam.cli.wording import in_options
from jsam.errors import UnequalDataError
from jsam.mechanism.rules import AUTO
from jsam.report.plain import json_text

if TYPE_CHECKING:
    from jsam.campaign.campaign_rules import CampaignRules
    from jsam.flower.launch.deploy import LocalResult

EXAMPLES = examples(
    "jsam deploy-local --clients 3 --rounds 2",
    "jsam deploy-local --clients 5 --rounds 10 --dataset mnist --tls --format json",
)

DATA = "What is trained, and how"
RULES_USED = "rules.toml"
USUAL: dict[str, Any] = {"prior": "uniform:0,1", "loss_weight": 50.0}


@with_options
def deploy_local(
    *,
    clients: Annotated[int, option(DATA, "How many SuperNodes.", min=1)] = 3,
    rounds: Annotated[int, option(DATA, "Rounds of training.", min=1)] = 2,
    per_round: Annotated[
        int | None, option(DATA, "Draws in each round. \\[default: one for each client]", min=1)
    ] = None,
    dataset: Annotated[str, option(DATA, "digits, mnist or cifar10.")] = "digits",
    clip_norm: Annotated[float, option(DATA, "Each record's gradient is clipped to this.")] = 1.0,
    learning_rate: Annotated[float, option(DATA, "Step of the server.")] = 0.5,
    sizes: Annotated[str | None, option(DATA, SIZES_WORDS, metavar=SIZES_METAVAR)] = None,
    delta: Annotated[float, option(DATA, "δ of the guarantee.")] = 1e-5,
    economy: Annotated[RuleOptions, rule_flags(**USUAL, noise_weight=AUTO, max_epsilon=MAX_EPSILON)],
    tls: Annotated[bool, option(ECONOMY, "Encrypt, and let every SuperNode prove its key.", "--tls")] = False,
    limit: Annotated[
        float | None,
        option(
            DATA,
            "Give a run up after this. \\[default: once the server itself must have, 10 minutes a round]",
            min=1.0,
            metavar="SECONDS",
        ),
    ] = None,
    output: Annotated[
        Path,
        option(
            RESULT,
            "Where everything goes; where something is already, the next free name (out/deploy-local-2).",
            metavar="FOLDER",
        ),
    ] = Path("out/deploy-local"),
    format: Annotated[PageFormat, option(RESULT, "What the result is written as.")] = PageFormat.TABLE,  # noqa: A002
) -> None:
    """Start a SuperLink and SuperNodes on this machine, run a campaign among them, and show what each client's own
    ledger says.

    The rules that were used are in rules.toml of the folder, for --rules. A run that fails ends with one line on
    standard error that says why; what the clients spent until then is shown all the same.

    Exit codes: 0 done, 1 a client is over its contract, 2 bad input or a run that failed.
    """
    require_flower("deploy-local")
    from jsam.files import write_atomically
    from jsam.flower.launch.deploy import Shares, dealing, run_local
    from jsam.flower.launch.processes import interruptible
    from jsam.runs.settings import TrainingSettings
    from jsam.training.automatic import TaskWeights
    from jsam.training.data import load_dataset
    from jsam.training.models import build_model
    from jsam.training.task import num_parameters

    open_rules = economy.open_rules(**USUAL)
    rules = open_rules.rules
    check_without_file(rules, clients, "clients of a federation do not report")
    folder = free_folder(output, holds_something)
    held = None if sizes is None else law_or_sizes(sizes)
    spec = dealing(dataset, clients=clients, sizes=held, seed=rules.seed)
    data = load_dataset(dataset)
    split = spec.split(data)
    size = num_parameters(build_model(dataset, rules.seed))
    weights = TaskWeights.of(spec, split, data, TrainingSettings(delta=delta), num_parameters=size)
    rules = open_rules.closed(weights)
    published = _counting_sizes(
        {
            "campaign": f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}",
            **rules.as_dict(),
            "model": dataset,
            "rounds": rounds,
            "per_round": per_round or clients,
            "clip_norm": clip_norm,
            "learning_rate": learning_rate,
            "delta": delta,
        },
        wanted=held is not None,
    )
    published.check_prior()
    shares = Shares.of(published, dataset, data, split)
    _make(folder)
    if folder != output:
        say(f"{output} is there already; this goes to {folder}")
    write_atomically(folder / RULES_USED, rules.to_toml().encode())
    economy.say_mechanism(rules)
    open_rules.say_weights(rules, weights)
    began = time.monotonic()
    try:
        with interruptible(), _Screen(rounds, rules.mechanism) as screen:
            result = run_local(folder, shares, tls=tls, policy=_policy(published), limit=limit, progress=screen)
    except KeyboardInterrupt:
        say(f"interrupted; what a client has spent: jsam supernode {folder}/clients/client-0/client.toml --statement")
        raise
    deliver(_text(result, folder, time.monotonic() - began, format), None)
    if result.failure is not None:
        fail(in_options(result.failure))
    if not result.kept:
        raise typer.Exit(EXIT_VIOLATION)
    if result.failure is not None:
        raise typer.Exit(EXIT_BAD_INPUT)


def _counting_sizes(settings: dict[str, Any], *, wanted: bool) -> CampaignRules:
    """The rules of the campaign, whose plan counts sizes if that is wanted and can be done."""
    from jsam.campaign.campaign_rules import REPORTED, CampaignRules

    if wanted:
        try:
            return CampaignRules.from_dict({**settings, "sizes": REPORTED})
        except UnequalDataError as error:
            why = in_options(str(error))
            say(f"warning: the plan treats all clients alike, whatever they hold; noise does not ({why})")
    return CampaignRules.from_dict(settings)


def _policy(rules: CampaignRules) -> str:
    """These clients are the caller's own: they sell what the options ask for."""
    from jsam.campaign.client.policy import Policy, claims_truth

    usual, most = Policy(), rules.rules.max_epsilon or 0.0
    limits = {
        "max_epsilon": max(usual.max_epsilon, most),
        "total_epsilon": max(usual.total_epsilon, most),
        "max_draws": max(usual.max_draws, rules.training.rounds * rules.training.per_round),
        "complete_information": "false" if claims_truth(rules.rules.mechanism) else "true",
    }
    return "".join(f"{name} = {value}\n" for name, value in limits.items())


def holds_something(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _make(folder: Path) -> None:
    from jsam.files import keep_private, make_folder

    try:
        make_folder(folder)
        keep_private(folder, "--output")
        # A folder that was there may still be closed to us.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise unusable_folder(folder, error) from error


class _Screen:
    """Stages as lines, rounds as a bar."""

    _WORDS = {  # noqa: RUF012 - a constant
        "superlink": "SuperLink is up on port {port} of this machine",
        "nodes": "{clients} SuperNodes are starting, each with its own folder",
        "submitted": "run {run_id} is submitted; clients are asked for their sensitivities",
        "reports": "reports are in; contracts are planned and offered",
        "agreement": "contracts are agreed on; training begins",
    }

    def __init__(self, rounds: int, mechanism: str) -> None:
        self._bar = RoundProgress(f"Training ({mechanism})", rounds)

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def __call__(self, stage: str, record: dict[str, Any]) -> None:
        if stage in self._WORDS:
            say(self._WORDS[stage].format(**record))
            if stage == "agreement":
                self._bar.__enter__()
        else:
            self._bar(record)


def _text(result: LocalResult, folder: Path, seconds: float, format: PageFormat) -> str:  # noqa: A002
    if format is PageFormat.JSON:
        return json_text({**result.as_dict(), "folder": str(folder), "seconds": round(seconds, 1)})
    from rich.table import Table
    from rich.text import Text

    table = Table(title="What each client's own ledger says")
    table.add_column("client")
    for title in ("records", "ε sold", "ε spent", "draws", "releases", "agreed", "due"):
        table.add_column(title, justify="right")
    content = result.as_dict()
    for row in content["clients"]:
        table.add_row(
            row["id"],
            str(row["samples"] or "–"),
            f"{row['epsilon_bought']:.4g}",
            f"{row['epsilon_spent']:.4g}",
            str(row["participations"]),
            str(row["releases"]),
            f"{row['payment_agreed']:.4g}",
            f"{row['payment']:.4g}",
        )
    sides = "the clients' ledgers and the server's" if result.books else "the clients' ledgers"
    verdict = f"nobody spent more ε than it sold, by {sides}"
    if not result.kept:
        verdict = "a client is OVER its contract"
    lines = [
        Text(verdict, style="green" if result.kept else "bold red"),
        Text(f"run {result.run.run_id}: {result.run.status}, {seconds:.0f} s; everything is in {folder}"),
    ]
    return rendered(table, *lines)
