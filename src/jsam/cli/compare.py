"""`jsam compare`: all mechanisms on the same clients, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from jsam.cli.inputs import Inputs
from jsam.cli.options import ECONOMY, ClientsFile, PlotFile, Result, examples, option, with_options
from jsam.cli.output import progress_bar
from jsam.cli.rule_options import RuleOptions, rule_flags
from jsam.cli.wording import in_options
from jsam.errors import InputError
from jsam.mechanism.contract import Contract
from jsam.mechanism.fairness import Fairness
from jsam.mechanism.registry import find_description
from jsam.mechanism.rules import Rules

if TYPE_CHECKING:
    from jsam.mechanism.families.base import RangeMechanism

EXAMPLES = examples(
    "jsam compare clients.csv --prior uniform:0,1 --loss-weight 5",
    "jsam compare clients.csv --prior uniform:0,1 --budget 10 --plot compare.png",
    "jsam compare clients.csv --rules rules.toml --mechanism jsam --mechanism fsbm-20 --format csv",
)

COLUMNS = (
    "mechanism",
    "num_selected",
    "loss_weight",
    "expected_cost",
    "total_payment",
    "loss_bound",
    "objective",
    "truthful",
    "error",
)

# Every setting but the mechanism.
SHARED = tuple(field.name for field in fields(Rules) if field.name != "mechanism")

# The sweep behind the pictures: so many loss weights, so far to both sides of the one asked for.
SWEEP_POINTS, SWEEP_POINTS_LARGE, SWEEP_REACH = 49, 17, 25.0
# The noise weight under which the paper's numbers of selected clients come out (docs/theory.md, "The mechanisms").
PAPER_NOISE_WEIGHT, PAPER_CLIENTS = 9.0, 100


@with_options
def compare(
    *,
    clients: ClientsFile,
    economy: Annotated[RuleOptions, rule_flags(*SHARED, written=True)],
    mechanism: Annotated[
        list[str] | None,
        option(
            ECONOMY,
            "A mechanism to compare; repeat for several. Without any: jsam-even  jsam  jsam-ci  usbm, fsbm with half"
            " and three quarters of the clients, bbm with half if there are losses, and the one that --rules names.",
        ),
    ] = None,
    result: Result,
    plot: PlotFile = None,
) -> None:
    """Plan with every mechanism for the same clients: at the same loss weight, or each at its own for one budget.

    CLIENTS.csv and the options are those of jsam plan.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    from jsam.report.fairness import fairness_table
    from jsam.report.tables import compare_table

    rules = economy.rules()
    result.check(sources=[clients, *economy.sources(rules)], plot=plot, write_rules=economy.written)
    inputs = Inputs.read(clients, rules)
    names, notes = (mechanism, []) if mechanism else _all_names(inputs)
    rows, even = _rows(inputs, names)
    content: dict[str, Any] = {
        "num_clients": inputs.market.num_clients,
        "noise_weight": rules.noise_weight,
        "bias_weight": rules.bias_weight,
        "budget": rules.budget,
        "mechanisms": rows,
        "fairness": even,
        "notes": notes,
    }
    files = economy.files(rules)
    if plot is not None:
        from jsam.report.figures import compare_picture

        content["sweep"] = _sweep(inputs, rows)
        files[plot] = compare_picture(rows, content["sweep"], plot.suffix)
    result.deliver(
        lambda: content, "mechanisms", lambda: [compare_table(rows, notes), fairness_table(even)], COLUMNS, files
    )


def _all_names(inputs: Inputs) -> tuple[list[str], list[str]]:
    N = inputs.market.num_clients
    half, most = max(1, round(N / 2)), max(1, round(3 * N / 4))
    names = ["jsam-even", "jsam", "jsam-ci", "usbm", f"fsbm-{half}", f"fsbm-{most}"]
    notes = []
    if inputs.market.losses is not None:
        names.append(f"bbm-{half}")
    else:
        source = "the clients" if inputs.table is None else inputs.table.source
        notes.append(f"bbm-{half} is left out: it selects by local loss, and {source} has no column 'loss'")
    return list(dict.fromkeys([*names, inputs.rules.mechanism])), notes


def _rows(inputs: Inputs, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each mechanism, and how even its contract is where it has one."""
    rows: list[dict[str, Any]] = []
    even: list[dict[str, Any]] = []
    errors: list[InputError] = []
    asked = [inputs.under(name) for name in names]
    for question in asked:
        question.named_mechanism()  # A name or a weight that is wrong is wrong for the whole comparison.
    for question in asked:
        try:
            contract, _ = question.contract()
            rows.append({**_record(contract), "error": None})
            even.append({"mechanism": contract.mechanism, **Fairness.of(contract).as_dict()})
        except InputError as error:
            errors.append(error)
            name = question.rules.mechanism
            rows.append({**dict.fromkeys(COLUMNS), "mechanism": name, "error": in_options(str(error))})
    if len(errors) == len(rows):
        raise errors[0]
    return rows, even


def _record(contract: Contract) -> dict[str, Any]:
    record = {name: getattr(contract, name) for name in COLUMNS if name != "error"}
    said = find_description(contract.mechanism)
    if said is not None and said.spends_budget:
        # Its contract has a loss weight of 1, which decided nothing.
        record |= {"loss_weight": None, "objective": None}
    return record


def _sweep(inputs: Inputs, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each mechanism buys over a range of loss weights: one plain record a point."""
    runs = list(_sweep_runs(inputs, rows))
    records = []
    with progress_bar("Sweep over loss weights", len(runs)) as bar:
        for mechanism in runs:
            contract = mechanism.plan(inputs.market, payments=False)
            records.append({**_record(contract), "noise_weight": mechanism.noise_weight})
            bar.advance(1)
    return records


def _sweep_runs(inputs: Inputs, rows: Sequence[dict[str, Any]]) -> Iterator[RangeMechanism]:
    good = [row for row in rows if row["loss_weight"] is not None]
    if not good:
        raise InputError("a picture shows loss weights, and none of these mechanisms has one; leave --plot out")
    centre = good[0]["loss_weight"]
    points = SWEEP_POINTS if inputs.market.num_clients <= 5000 else SWEEP_POINTS_LARGE
    etas = centre * np.geomspace(1 / SWEEP_REACH, SWEEP_REACH, points)
    for row in good:
        question = inputs.under(row["mechanism"])
        mechanisms = [question.named_mechanism()]
        paper_scale = row["mechanism"] == "jsam" and inputs.market.num_clients == PAPER_CLIENTS
        if paper_scale and inputs.rules.noise_weight != PAPER_NOISE_WEIGHT:
            paper = replace(question, rules=replace(question.rules, noise_weight=PAPER_NOISE_WEIGHT))
            mechanisms.append(paper.named_mechanism())
        for mechanism in mechanisms:
            for eta in etas:
                yield mechanism.with_loss_weight(float(eta))
