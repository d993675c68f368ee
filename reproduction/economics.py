"""What needs no training: costs, numbers of clients, selection probabilities, who costs most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract
from jsam.mechanism.families import plan
from jsam.mechanism.market import Market
from jsam.mechanism.registry import mechanism_named
from jsam.report.output_files import write_result
from jsam.runs.drawn_sensitivities import draw_sensitivities
from reproduction import paper_numbers as published
from reproduction.paths import Places
from reproduction.planning import PRIOR
from reproduction.spec import Spec
from reproduction.tuned_settings import Chosen

BAND = (0.025, 0.5, 0.975)
Settings = Mapping[str, Any]


def run_planner(spec: Spec, chosen: Chosen, places: Places) -> None:
    """Compute a planner's experiment and store it."""
    settings = planner_settings(spec, chosen)
    try:
        make = _EXPERIMENTS[spec.settings["what"]]
    except KeyError:
        raise InputError(f"{spec.id}: what must be one of: {', '.join(_EXPERIMENTS)}") from None
    try:
        made = make(settings)
    except KeyError as error:
        if error.args[0] in settings:
            raise
        raise InputError(f"{spec.id}: it lacks the setting {error.args[0]}") from None
    result = {"settings_used": settings, **_short(made)}
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    write_result(places.planner / f"{spec.id}.json", text.encode())


def planner_settings(spec: Spec, chosen: Chosen) -> dict[str, Any]:
    """What a planner's experiment is to be made with."""
    # Lemma 1's Q is the one that the panels are planned with; the data set does not matter to a planner.
    resolved = chosen.resolve({"noise": "lemma1", "dataset": "mnist", **spec.settings})
    return {name: resolved[name] for name in spec.settings}


def current_planner(spec: Spec, chosen: Chosen, places: Places) -> dict[str, Any] | None:
    """What is stored of a planner's experiment; None if nothing is, or if it was made with other settings."""
    stored = read_planner(spec.id, places)
    return stored if stored is not None and stored.get("settings_used") == planner_settings(spec, chosen) else None


def read_planner(spec_id: str, places: Places) -> dict[str, Any] | None:
    """What is stored of a planner's experiment, made with whatever settings; None if nothing is."""
    path = places.planner / f"{spec_id}.json"
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict):
            raise ValueError("not a result")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it to have it made again") from error
    return stored


def _market(num_clients: int, seed: int) -> Market:
    losses = np.arange(num_clients, dtype=np.float64)  # BBM's choice has nothing to do with sensitivities
    return Market(sensitivities=draw_sensitivities(PRIOR, num_clients, seed), prior=PRIOR, losses=losses)


def _contracts(mechanism: str, num_clients: int, draws: int, **weights: float) -> list[Contract]:
    made = mechanism_named(mechanism, **weights)
    return [plan(_market(num_clients, seed), made, payments=False) for seed in range(draws)]


def _band(values: Any) -> list[float]:
    return [float(value) for value in np.quantile(np.asarray(values, dtype=np.float64), BAND)]


def cost_against_eta(settings: Settings) -> dict[str, Any]:
    """Mean expected cost and band over draws for each η; where the mean's slope rises (convex) and where it falls."""
    etas = np.linspace(settings["eta_max"] / settings["points"], settings["eta_max"], settings["points"])
    curves = {}
    for mechanism in settings["mechanisms"]:
        rows = np.array(
            [
                [
                    contract.expected_cost
                    for contract in _contracts(
                        mechanism,
                        settings["num_clients"],
                        settings["draws"],
                        loss_weight=float(eta),
                        noise_weight=settings["noise_weight"],
                    )
                ]
                for eta in etas
            ]
        )
        mean = rows.mean(axis=1)
        steepest = _steepest(etas, mean)
        curves[mechanism] = {
            "mean": mean.tolist(),
            "low": np.quantile(rows, BAND[0], axis=1).tolist(),
            "high": np.quantile(rows, BAND[2], axis=1).tolist(),
            "convex_up_to": None if steepest is None else float(etas[steepest]),
            "cost_there": None if steepest is None else float(mean[steepest]),
        }
    return {"etas": etas.tolist(), "curves": curves}


def _steepest(etas: FloatArray, mean: FloatArray) -> int | None:
    """Where the mean cost grows fastest: it is convex up to there and concave beyond. None: concave throughout.

    The slope is taken over several steps: clients that come in one by one make small waves.
    """
    width = len(etas) // 10
    slope = (mean[width:] - mean[:-width]) / (etas[width:] - etas[:-width])
    place = int(np.argmax(slope))
    return None if place == 0 else place + width // 2


def selected_clients(settings: Settings) -> dict[str, Any]:
    """How many clients JSAM keeps at which cost, over draws, and which Q puts the paper's two points in the band.

    Costs scale: at weight Q JSAM keeps at cost B as many as at weight 1 at cost B/√Q. So one sweep serves every Q.
    """
    num_clients, draws = settings["num_clients"], settings["draws"]
    etas = np.geomspace(0.01, 100, settings["points"])
    costs, kept = np.empty((draws, len(etas))), np.empty((draws, len(etas)))
    for column, eta in enumerate(etas):
        for draw, contract in enumerate(_contracts("jsam", num_clients, draws, loss_weight=float(eta))):
            costs[draw, column], kept[draw, column] = contract.expected_cost, contract.num_selected

    def at(cost: float, weight: float) -> FloatArray:
        """Clients kept in each draw at this cost: the count of the largest η that stays within it."""
        places = (costs <= cost / np.sqrt(weight)).sum(axis=1) - 1
        return np.asarray(kept[np.arange(draws), np.maximum(places, 0)])

    weights = np.round(np.geomspace(1, 100, 81), 3)
    points = []
    for cost, count in published.SELECTED:
        bands = [_band(at(cost, weight)) for weight in weights]
        inside = [float(w) for w, (low, _, high) in zip(weights, bands, strict=True) if low <= count <= high]
        means = [float(at(cost, weight).mean()) for weight in weights]
        points.append(
            {
                "cost": cost,
                "paper": count,
                "noise_weight_inside": [min(inside), max(inside)] if inside else None,
                # Fewer clients at larger Q: the means fall.
                "noise_weight_of_mean": float(np.interp(-count, -np.array(means), weights)),
            }
        )
    chosen = float(settings["noise_weight"])
    grid = np.geomspace(0.1, 600, 60)
    curves = {}
    for weight in dict.fromkeys([chosen, *settings["other_noise_weights"]]):
        rows = [at(cost, weight) for cost in grid]
        curves[f"{weight:g}"] = {
            "mean": [float(row.mean()) for row in rows],
            "low": [_band(row)[0] for row in rows],
            "high": [_band(row)[2] for row in rows],
        }
    at_chosen = [
        {"cost": cost, "paper": count, "band": _band(at(cost, chosen)), "mean": float(at(cost, chosen).mean())}
        for cost, count in published.SELECTED
    ]
    both = [p["noise_weight_inside"] for p in points]
    common = None
    if all(both):
        low, high = max(b[0] for b in both), min(b[1] for b in both)  # type: ignore[index]
        common = [low, high] if low <= high else None
    return {
        "costs": grid.tolist(),
        "curves": curves,
        "points": points,
        "noise_weight_for_both": common,
        "at_chosen": at_chosen,
    }


def cost_columns(settings: Settings) -> dict[str, Any]:
    """The costs of the tables relative to each other at one η, over draws, beside the paper's."""
    weights = {"loss_weight": settings["loss_weight"], "noise_weight": settings["noise_weight"]}
    costs = {
        name: np.array(
            [c.expected_cost for c in _contracts(name, settings["num_clients"], settings["draws"], **weights)]
        )
        for name in published.MECHANISMS
    }
    paper = {name: published.table_cost("mnist", name, 100.0) for name in published.MECHANISMS}
    paper["bbm-50"] = published.mean_bbm_cost()
    pairs = [("jsam-ci", "jsam"), *((name, "usbm") for name in ("jsam", "fsbm-50", "fsbm-75", "bbm-50"))]
    ratios = {}
    for name, other in pairs:
        values = costs[name] / costs[other]
        theirs = float(paper[name] or 0) / float(paper[other] or 1)
        low, middle, high = _band(values)
        ratios[f"{name}/{other}"] = {
            "mean": float(values.mean()),
            "band": [low, middle, high],
            "paper": theirs,
            "inside": published.cost_ratio_inside(theirs, low, high),
        }
    return {"ratios": ratios, "jsam_cost": _band(costs["jsam"])}


def structure(settings: Settings) -> dict[str, Any]:
    """Selection probabilities of ten clients, cheapest first, as η rises."""
    order = np.argsort(_market(settings["num_clients"], settings["seed"]).sensitivities)
    rows = []
    for eta in settings["etas"]:
        mechanism = mechanism_named("jsam", loss_weight=float(eta), noise_weight=settings["noise_weight"])
        contract = plan(_market(settings["num_clients"], settings["seed"]), mechanism, payments=False)
        rows.append(
            {
                "eta": eta,
                "cost": contract.expected_cost,
                "selection_probs": contract.selection_probs[order].tolist(),
                "virtual_costs": contract.virtual_costs[order].tolist(),
            }
        )
    return {"rows": rows}


def who_costs_most(settings: Settings) -> dict[str, Any]:
    """c ε and v ε against sensitivity for one draw, and how often the least sensitive client is the dearest."""
    weights = {"noise_weight": settings["noise_weight"]}
    by_eta = []
    for eta in settings["etas"]:
        contracts = _contracts("jsam", settings["num_clients"], settings["draws"], loss_weight=float(eta), **weights)
        dearest = [bool(np.argmax(c.virtual_costs * c.epsilons) == np.argmin(c.sensitivities)) for c in contracts]
        shares = [
            float((c.virtual_costs * c.epsilons)[np.argmin(c.sensitivities)] / c.expected_cost) for c in contracts
        ]
        first = contracts[0]
        order = np.argsort(first.sensitivities)
        by_eta.append(
            {
                "eta": eta,
                "mean_cost": float(np.mean([c.expected_cost for c in contracts])),
                "least_sensitive_costs_most": float(np.mean(dearest)),
                "its_share_of_the_cost": _band(shares),
                "sensitivities": first.sensitivities[order].tolist(),
                "client_costs": (first.sensitivities * first.epsilons)[order].tolist(),
                "server_costs": (first.virtual_costs * first.epsilons)[order].tolist(),
            }
        )
    return {"by_eta": by_eta}


_EXPERIMENTS = {
    "cost-against-eta": cost_against_eta,
    "selected-clients": selected_clients,
    "cost-columns": cost_columns,
    "structure": structure,
    "who-costs-most": who_costs_most,
}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
