"""Offers for tests: a sound one, and changes of it with or without a hash that fits."""

from __future__ import annotations

import dataclasses
from typing import Any

from jsam.campaign.terms import PublicInputs, Terms
from jsam.mechanism.rules import Rules


def public_inputs(**changes: Any) -> PublicInputs:
    settings = {
        **Rules(prior="uniform:0,1", loss_weight=5.0).as_dict(),
        "budget_seed": 0,
        "num_clients": 3,
        "rounds": 6,
        "per_round": 4,
        "learning_rate": 0.1,
        "model": "digits-mlp",
        "precision": "float32",
        **changes,
    }
    del settings["seed"]
    return PublicInputs.from_dict(settings)


def offer(**changes: Any) -> Terms:
    """A sound offer: the noise is what these numbers need."""
    settings: dict[str, Any] = {
        "campaign": "spring",
        "client": "hospital-a",
        "epsilon": 1.5,
        "delta": 1e-5,
        "participations": 5,
        "clip_norm": 2.0,
        "samples": 600,
        "adjacency": "add-remove",
        "payment": 0.8,
        "public": public_inputs(),
    }
    return Terms.of_contract(**{**settings, **changes})


def forged(terms: Terms, **changes: Any) -> Terms:
    """Other numbers under a hash that fits them: what a server that means harm would send."""
    return dataclasses.replace(terms, **changes, hash="")
