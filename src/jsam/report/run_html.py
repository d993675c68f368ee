"""The page of one run: what the model learned, what was bought from whom, what was spent of it, what is paid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsam.errors import InputError
from jsam.files import write_atomically
from jsam.mechanism.contract_files import contract_from_dict
from jsam.mechanism.fairness import Fairness
from jsam.privacy import noise_rule
from jsam.report.fairness import HEADER as FAIRNESS_HEADER
from jsam.report.fairness import WORDS as FAIRNESS_WORDS
from jsam.report.fairness import cells as fairness_cells
from jsam.report.page import cards, figure, number, page, paragraph, percent, section, table, verdict
from jsam.report.run_data import RunData, epsilon_sold, payment_due
from jsam.report.svg import Bar, Series, bar_chart, line_chart
from jsam.runs.noise_weight import NoiseWeight
from jsam.runs.settings import TrainingSettings, simulated


def write_run_page(folder: Path | str) -> Path:
    """Write report.html into a run's folder from the files in it."""
    run = RunData.load(folder)
    path = run.folder / "report.html"
    try:
        content = run_page(run).encode(errors="replace")
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        # Each file is whole; what is odd inside one shows only where it is drawn.
        raise InputError(f"{run.folder} is damaged: a page cannot be made of its files ({error!r})") from error
    # It shows what each client's privacy costs.
    write_atomically(path, content)
    return path


def run_page(run: RunData) -> str:
    data, contract = run.config["data"], run.contract
    subtitle = (
        f"{data['dataset']}, {data['partition']}, {data['num_clients']} clients, {run.settings['rounds']} rounds of "
        f"{run.settings['per_round']} draws"
    )
    done, rounds = run.metrics[-1]["round"] if run.metrics else 0, run.settings["rounds"]
    state = [] if run.complete else [paragraph(f"The run is not complete: {done} of {rounds} rounds.")]
    return page(
        f"Private training under the {run.mechanism} contract",
        subtitle,
        *state,
        cards(
            [
                (percent(run.accuracy), "test accuracy"),
                (f"{contract['num_selected']} of {contract['num_clients']}", "clients under contract"),
                (number(run.total_payment), "paid to clients in total"),
                (number(max((epsilon_sold(c) or 0.0 for c in run.clients), default=None)), "largest ε sold"),
            ]
        ),
        verdict(run.audit["kept"], run.audit["verdict"]),
        *([] if run.private else [verdict(False, [run.audit["noise_from"]])]),
        section("Accuracy", figure(accuracy_chart([run])), _class_table(run)),
        *_noise(run),
        section("The plan", *_plan(run)),
        section("How even it is", fairness_html([run]), paragraph(FAIRNESS_WORDS, soft=True)),
        section("Every client", paragraph(CLIENT_WORDS, soft=True), clients_table(run)),
        section("What the guarantee says", paragraph(guarantee(run.audit)), _settings_table(run)),
        section("What may be published", paragraph(PUBLISHING_WORDS, soft=True), _files_table(run)),
    )


_NOISE_WORDS = (
    "Norm of the noise over the norm of the clipped mean gradient, round by round. This, the training loss and the "
    "share of clipped gradients are looked at inside the simulation; no contract covers publishing them."
)
PUBLISHING_WORDS = (
    "The contracts cover what follows from the noisy updates. Other files look at the records without noise, or say "
    "what clients are paid. jsam publish makes a copy that may be shown."
)
CLIENT_WORDS = (
    "A client is paid for the ε it sold, whether or not it was drawn. Spent ε is recomputed "
    "from the ledger by an exact accountant and, beside it, by dp-accounting's privacy loss distributions."
)


_PARTS = ("of it for training", "of it for labels")  # where label counts were bought


def fairness_html(runs: Sequence[RunData]) -> str:
    """Who is drawn and paid how unevenly, a row for each run."""
    rows = [("", fairness_cells(run.mechanism, Fairness.of(contract_from_dict(run.contract)))) for run in runs]
    return table(FAIRNESS_HEADER, rows)


def accuracy_chart(runs: list[RunData]) -> str:
    series = [
        Series(name=run.mechanism, points=[(r["round"], r["accuracy"]) for r in run.evaluations], tone=tone)
        for tone, run in enumerate(runs, start=1)
    ]
    return line_chart(series, x_title="round", y_title="test accuracy", top=1.0, percent=True)


def clients_table(run: RunData) -> str:
    """All clients, the best paid first."""
    parts = 0 if run.labels is None else len(_PARTS)
    header = (
        "client", "sensitivity", "selection probability", "draws", "ε sold", *_PARTS[:parts], "ε spent",
        "ε spent (second)", "payment", "",
    )  # fmt: skip
    rows = []
    for client in sorted(run.clients, key=lambda client: -(payment_due(client) or 0.0)):
        kind = "over" if client.get("over") else "none" if not epsilon_sold(client) else ""
        remark = "OVER" if client.get("over") else "" if client.get("participations") else "never drawn"
        cells = [
            str(client["id"]),
            number(client.get("sensitivity")),
            number(client.get("selection_prob")),
            str(client.get("participations", 0)),
            number(epsilon_sold(client)),
            *[number(client.get(name)) for name in ("bought_for_training", "bought_for_labels")][:parts],
            number(client.get("spent")),
            number(client.get("second_opinion")),
            number(payment_due(client)),
            remark,
        ]
        rows.append((kind, cells))
    return table(header, rows)


def guarantee(audit: dict[str, Any]) -> str:
    """In words, with the adjacency named."""
    if not audit.get("private", True):
        return f"None towards whoever knows the seed of the noise: {audit['noise_from']}, and can be taken off."
    words = audit["adjacency_words"] or audit["adjacency"]
    sampling = "No amplification by sampling is claimed: the server knows who was drawn."
    rule = noise_rule(audit["noise"], audit["c2"])
    counts = " and its label counts together" if "label_counts" in audit else ""
    if not rule.keeps_contracts:
        return (
            f"{rule.words[0].upper()}{rule.words[1:]}. What that guarantees is the ε spent, at "
            f"δ = {audit['delta']:g}, for {words}; it may be more than the ε sold. {sampling}"
        )
    return (
        f"Every client k holds an (ε_k, δ)-differential-privacy guarantee over the whole training{counts}, "
        f"δ = {audit['delta']:g}, for {words}; {rule.words}. {sampling}"
    )


def _weights(run: RunData) -> str:
    """The weights of the loss bound; those that follow from the task with their parts."""
    Q, data = run.contract["noise_weight"], run.config["data"]
    shown = number(Q)
    if simulated(run.config) and data.get("samples"):
        samples = sum(data["samples"]) / len(data["samples"])
        automatic = NoiseWeight.of(
            TrainingSettings.of_run(run.config), num_parameters=data["parameters"], samples=samples
        )
        if automatic.value == Q:
            shown = f"{automatic.words}, as follows from the task"
    return (
        f"The plan weighs privacy noise by Q = {shown}, and how much clients differ by ζ ="
        f" {number(run.contract['bias_weight'])}."
    )


def _plan(run: RunData) -> list[str]:
    clients = sorted((c for c in run.clients if c.get("sensitivity") is not None), key=lambda c: c["sensitivity"])
    chances = [
        Bar(
            label=f"{c['id']}: sensitivity {number(c['sensitivity'])}, p = {number(c['selection_prob'])}",
            value=c["selection_prob"],
        )
        for c in clients
    ]
    budgets = [
        Bar(
            label=f"{c['id']}: ε sold {number(epsilon_sold(c))}, spent {number(c.get('spent'))}, "
            f"T = {c.get('participations', 0)}",
            value=epsilon_sold(c) or 0.0,
            inner=c.get("spent") or 0.0,
            bad=bool(c.get("over")),
        )
        for c in clients
    ]
    paid = [Bar(label=f"{c['id']}: paid {number(payment_due(c))}", value=payment_due(c) or 0.0) for c in clients]
    by = "clients, from the least to the most sensitive"
    return [
        paragraph(_weights(run), soft=True),
        *([] if run.labels is None else [paragraph(f"Label counts with noise gave {run.labels.words}.", soft=True)]),
        paragraph("How often each client is to be drawn:", soft=True),
        figure(bar_chart(chances, x_title=by, y_title="selection probability", tone=1)),
        paragraph("The ε each client sold (pale) and what the ledger says was spent of it (solid):", soft=True),
        figure(bar_chart(budgets, x_title=by, y_title="ε", tone=3)),
        paragraph("What each client is paid:", soft=True),
        figure(bar_chart(paid, x_title=by, y_title="payment", tone=2)),
    ]


def _noise(run: RunData) -> list[str]:
    """Only a simulation can know it: in a federation nobody sees a gradient without its noise."""
    points = [(r["round"], r["noise_to_signal"]) for r in run.metrics if r.get("noise_to_signal") is not None]
    if not points:
        return []
    # A point a round would be a blot: at most some hundred are drawn.
    step = max(1, len(points) // 120)
    chart = line_chart(
        [Series(name="noise to signal", points=points[::step], tone=4)],
        x_title="round",
        y_title="noise ÷ signal",
        height=200,
    )
    return [section("Noise", figure(chart), paragraph(_NOISE_WORDS, soft=True))]


def _class_table(run: RunData) -> str:
    if not run.evaluations:
        return ""
    shares = run.evaluations[-1]["class_accuracy"]
    cells = ["accuracy", *(percent(share) for share in shares)]
    return table(["class", *map(str, range(len(shares)))], [("", cells)])


def _settings_table(run: RunData) -> str:
    rows = [("", [name, str(value)]) for name, value in run.settings.items() if value is not None]
    environment = [("", [name, str(value)]) for name, value in run.config["environment"].items()]
    inner = table(["setting", "value"], rows + environment)
    return f"<details><summary>All settings of the run</summary>{inner}</details>"


def _files_table(run: RunData) -> str:
    rows = [("", [file["name"], file["publish"], file["why"]]) for file in run.audit.get("files", [])]
    return table(["file", "publish?", "why"], rows, words=True)
