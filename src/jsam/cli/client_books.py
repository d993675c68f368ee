"""What `jsam supernode` says and does without any server: a client's accounts, its policy, pausing, withdrawing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsam.cli.output import PageFormat, rendered
from jsam.errors import InputError
from jsam.report.plain import json_text

if TYPE_CHECKING:
    from jsam.campaign.client.client_files import ClientFiles
    from jsam.campaign.statement import Statement, Total


def statement_page(files: ClientFiles, format: PageFormat) -> str:  # noqa: A002 - the option's name
    """What was sold, spent and earned in each campaign, and what all come to together."""
    ledger = files.books()
    ledger.check()
    entries = ledger.statement()
    together = {"spent": _together(files, ledger.spent()), "committed": _together(files, ledger.committed())}
    if format is PageFormat.JSON:
        rows = json.loads(json.dumps([entry.as_dict() for entry in entries]))
        return json_text({"client": files.name, "paused": ledger.paused, **together, "campaigns": rows})
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"What {files.name} has sold, spent and earned")
    table.add_column("campaign", overflow="fold")
    for title in ("ε sold", "ε spent", "draws", "agreed", "due", "state"):
        table.add_column(title, justify="right")
    for entry in entries:
        table.add_row(
            entry.campaign,
            f"{entry.epsilon_bought:.4g}",
            f"{entry.epsilon_spent:.4g}",
            f"{entry.participations} of {entry.participations_bought}",
            f"{entry.payment_agreed:.4g}",
            f"{entry.payment:.4g}",
            _state(entry),
        )
    lines = [_total_line("Spent", together["spent"]), _total_line("Held ready or spent", together["committed"])]
    if ledger.paused:
        lines.append("The client is paused: it answers no request.")
    return rendered(table, Text("\n".join(lines)))


def policy_page(files: ClientFiles, format: PageFormat) -> str:  # noqa: A002 - the option's name
    """All limits that are in force."""
    limits = dataclasses.asdict(files.policy)
    if format is PageFormat.JSON:
        return json_text({"client": files.name, "policy": limits})
    said = {
        "max_delta": "below 1 ÷ number of records",
        "min_payment_per_epsilon": f"the own sensitivity, {files.sensitivity:g}",
        "reply_seconds": "as measured for each model, at least 0.25",
        "total_delta": "1e-05, or a tenth of 1 ÷ number of records where that is less",
    }
    width = max(map(len, limits))
    lines = [f"{name:<{width}}  {_value(value, said.get(name, ''))}" for name, value in limits.items()]
    return "\n".join([f"What {files.name} sells at all (limits in force):", *lines]) + "\n"


def paused(files: ClientFiles, on: bool) -> str:
    """Set or take away the flag that refuses every request."""
    files.books().pause(on)
    return f"{files.name} {'answers no request until --unpause' if on else 'answers again'}\n"


def withdrawn(files: ClientFiles, campaign: str) -> str:
    """End a campaign from the client's side; what it came to."""
    ledger = files.books()
    ledger.check()
    known = ledger.campaigns()
    if campaign not in known:
        raise InputError(f"{files.ledger} has no campaign {campaign!r}; it knows: {', '.join(known) or 'none'}")
    ledger.close(campaign)
    entry = next((entry for entry in ledger.statement() if entry.campaign == campaign), None)
    if entry is None or entry.withdrawn:
        return f"withdrawn from {campaign}: nothing was released, nothing is due\n"
    return (
        f"withdrawn from {campaign}: ε = {entry.epsilon_spent:.6g} of {entry.epsilon_bought:.6g} was spent at "
        f"δ = {entry.delta:g}, in {entry.participations} of {entry.participations_bought} draws; "
        f"{entry.payment:.6g} of {entry.payment_agreed:.6g} is due\n"
    )


def adopted(files: ClientFiles) -> str:
    """Chain the books of an earlier version, which have no chain."""
    from jsam.campaign.client.client_journal import adopt

    if not files.ledger.is_dir():
        raise InputError(f"{files.ledger} is no folder; there are no books to adopt")
    number = adopt(files.ledger)
    return f"{files.ledger}: {number} campaign{'' if number == 1 else 's'} adopted as they were found\n"


def _together(files: ClientFiles, together: Total) -> dict[str, Any]:
    """Exact composition at one δ, and the plain sums beside it."""
    return {
        "epsilon": files.policy.epsilon_of(together),
        "delta": files.policy.delta_of(together),
        "adjacency": files.policy.total_adjacency,
        "sum_epsilon": together.sum_epsilon,
        "sum_delta": together.sum_delta,
    }


def _total_line(what: str, together: Mapping[str, Any]) -> str:
    return (
        f"{what} over all campaigns: ε = {together['epsilon']:.4g} at δ = {together['delta']:.3g} "
        f"({together['adjacency']}, exact composition); "
        f"plain sums ε = {together['sum_epsilon']:.4g}, δ = {together['sum_delta']:.3g}"
    )


def _value(value: object, rule: str) -> str:
    if value is None:
        return rule
    return (
        ", ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _state(entry: Statement) -> str:
    """A client is not told that a campaign is over; it knows when no draw is left to answer."""
    if entry.withdrawn:
        return "withdrawn"
    if entry.participations >= entry.participations_bought:
        return "done"
    return "closed" if entry.closed else "open"
