"""Budgets already turned into η, kept in the user's cache folder: the answer depends on public inputs alone."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from jsam.errors import JsamError
from jsam.files import write_atomically
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.priors import identity_of
from jsam.mechanism.registry import is_of_this_package

# The method by which a budget becomes η. Raise it when the same inputs would give another answer.
VERSION = 4


@dataclass(frozen=True)
class BudgetCache:
    """A folder of small JSON files; `None` keeps nothing. Trouble with the disk is never an error here."""

    folder: Path | None

    @classmethod
    def default(cls) -> BudgetCache:
        """Return the cache in the user's folder for things that can be computed again."""
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(caches / "jsam" / "budgets")

    def get(self, key: str | None) -> dict[str, Any] | None:
        if self.folder is None or key is None:
            return None
        try:
            known = json.loads((self.folder / f"{key}.json").read_text())
            known["payment_quantiles"] = {float(q): amount for q, amount in known["payment_quantiles"].items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return None
        return dict(known)

    def put(self, key: str | None, plan: dict[str, Any]) -> None:
        if self.folder is None or key is None:
            return
        with suppress(OSError, JsamError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"{key}.json", json.dumps(plan).encode())


def fingerprint(mechanism: RangeMechanism, template: Market, **inputs: Any) -> str | None:
    """A hash of everything that the answer depends on; None if a prior or a user's own mechanism is part of that."""
    if not is_of_this_package(mechanism):
        return None
    priors = []
    for cost, members in template.cost_groups:
        identity = identity_of(cost.prior)
        if identity is None:
            return None
        priors.append([_plain(identity), members.tolist() if len(template.cost_groups) > 1 else len(members)])
    options = {f.name: _plain(getattr(mechanism, f.name)) for f in fields(mechanism) if f.name != "loss_weight"}
    active = mechanism.active(template)
    content = {
        "version": VERSION,
        "kind": type(mechanism).__qualname__,
        "options": options,
        "priors": priors,
        "active": active.tolist() if len(active) < template.num_clients else None,
        **({"samples": _plain(np.asarray(template.samples))} if mechanism.counts_sizes(template) else {}),
        **{name: _plain(given) for name, given in inputs.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]


def _plain(value: Any) -> Any:
    """The value for JSON; 5 and 5.0 are one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
