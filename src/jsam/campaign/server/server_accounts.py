"""Each client's account as the server sees it; the client's own ledger has its own, and the two can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jsam.campaign.server.storage import Agreement
from jsam.privacy import Release, check_contract


def accounts_of(
    agreement: Agreement,
    releases: Sequence[Release],
    answered: Mapping[str, int],
    rounds: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Spent is whatever was asked for; due is what was answered, at most what was asked for (docs/how-to/flower.md).

    `rounds` are the lines of the metrics, in which each slot that stayed empty has its reason; the books count them.
    """
    contract = agreement.contract
    bought = {name: terms.epsilon for name, terms in agreement.terms.items()}
    report = check_contract(releases, bought, agreement.noise_plan.settings.delta)
    spending = {str(entry.client): entry for entry in report.clients}
    empty: dict[str, Counter[str]] = {}
    for record in rounds:
        for name, reason in record.get("missing", {}).items():
            empty.setdefault(name, Counter())[reason] += 1
    clients = []
    for name in contract.ids:
        terms, entry = agreement.terms.get(name), spending.get(name)
        asked = 0 if entry is None else entry.participations
        clients.append(
            {
                "id": name,
                "epsilon_bought": 0.0 if terms is None else terms.epsilon,
                "epsilon_spent": 0.0 if entry is None else entry.spent,
                "participations": asked,
                "participations_bought": 0 if terms is None else terms.participations,
                "releases": 0 if entry is None else entry.releases,
                "answered": answered.get(name, 0),
                "payment_agreed": 0.0 if terms is None else terms.payment,
                "rounds_missed": dict(empty.get(name, {})),
                "payment": 0.0 if terms is None else terms.payment_for(answered.get(name, 0)),
                "payment_at_most": 0.0 if terms is None else terms.payment_for(asked),
                "declined": agreement.declined.get(name),
            }
        )
    left = [{"id": name, "declined": why} for name, why in agreement.declined.items() if name not in contract.ids]
    return {"kept": report.kept, "verdict": report.lines(), "clients": clients, "left": left}
