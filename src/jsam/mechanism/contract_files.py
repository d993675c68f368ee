"""Contracts as files: what `jsam plan --format json` wrote, read back number for number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import InputError
from jsam.files import read_json
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.contract import Contract, RunnerUp
from jsam.mechanism.weights import Weights


def load_contract(path: Path | str) -> Contract:
    """The contract in a file."""
    return contract_from_dict(read_json(path, "contract", advice="jsam plan --format json writes one"), str(path))


def storable(contract: Contract) -> dict[str, Any]:
    """The contract for a JSON file, which has no infinity: null stands for an infinite virtual cost."""
    content = contract.as_dict()
    for client in content["clients"]:
        if not math.isfinite(client["virtual_cost"]):
            client["virtual_cost"] = None
    return content


def contract_from_dict(stored: Mapping[str, Any], where: str = "contract") -> Contract:
    """The inverse of `Contract.as_dict`, and of `storable`."""
    try:
        clients = stored["clients"]
        runner_up = stored.get("runner_up")
        contract = Contract(
            mechanism=str(stored["mechanism"]),
            truthful=bool(stored["truthful"]),
            names=tuple(str(client["id"]) for client in clients),
            sensitivities=_column(clients, "sensitivity"),
            virtual_costs=_column(clients, "virtual_cost", finite=False),
            selection_probs=_column(clients, "selection_prob"),
            epsilons=_column(clients, "epsilon"),
            payments=_optional_column(clients, "payment"),
            update_weights=_optional_column(clients, "update_weight"),
            weights=Weights(
                loss_weight=float(stored["loss_weight"]),
                noise_weight=float(stored["noise_weight"]),
                bias_weight=float(stored["bias_weight"]),
                max_selection_prob=stored.get("max_selection_prob"),
                max_epsilon=stored.get("max_epsilon"),
                min_clients=stored.get("min_clients"),
                min_selection_prob=stored.get("min_selection_prob"),
            ),
            data_shares=_optional_column(clients, "data_share"),
            bias_rule=stored.get("bias_rule", "total"),
            budget=stored.get("budget"),
            ironed=bool(stored["ironed"]),
            runner_up=None if runner_up is None else RunnerUp(**runner_up),
            payment_error_bound=stored.get("payment_error_bound"),
            rounding_bound=stored.get("rounding_bound"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{where} is not a contract that jsam plan wrote: {error!r}") from error
    if len(set(contract.ids)) < contract.num_clients or not contract.ids:
        raise InputError(f"{where} must have at least one client, each with an id of its own")
    return contract


def _column(clients: Sequence[Mapping[str, Any]], key: str, *, finite: bool = True) -> FloatArray:
    values = [client[key] for client in clients]
    for value in values:
        # An infinite virtual cost is stored as null: such a client sells nothing.
        if (value is None and not finite) or (type(value) in (int, float) and (math.isfinite(value) or not finite)):
            continue
        raise ValueError(f"{key} is {value!r}; it must be a finite number")
    values = [math.inf if value is None else value for value in values]
    return np.array(values, dtype=np.float64)


def _optional_column(clients: Sequence[Mapping[str, Any]], key: str) -> FloatArray | None:
    return None if None in [client.get(key) for client in clients] else _column(clients, key)
