"""`jsam verify-contract`: a client checks, alone, the terms that it was offered."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jsam.cli.options import Result, argument, examples, option, with_options
from jsam.cli.output import EXIT_VIOLATION, plain_table
from jsam.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jsam.campaign.client.policy import Policy
    from jsam.campaign.terms import Terms

EXAMPLES = examples(
    "jsam verify-contract terms.json",
    "jsam verify-contract terms.json --sensitivity 0.23 --samples 600 --policy policy.toml --ledger ledger"
    " --format json",
)

OWN = "What only the client knows"
STYLES = {"passed": "green", "violated": "bold red", "not checked": "yellow"}


@with_options
def verify_contract(
    *,
    terms: Annotated[Path, argument("TERMS.json")],
    sensitivity: Annotated[float | None, option(OWN, "The own cost of a unit of ε: is the payment enough?")] = None,
    samples: Annotated[int | None, option(OWN, "The own number of records.", min=1)] = None,
    policy: Annotated[
        Path | None, option(OWN, "The own limits: is the offer within them?", metavar="POLICY.toml")
    ] = None,
    ledger: Annotated[
        Path | None,
        option(OWN, "The own books: other campaigns in them count towards the policy's totals.", metavar="FOLDER"),
    ] = None,
    recomputed: Annotated[
        bool | None,
        option(
            None,
            "With a budget: does it give this loss weight for N clients? Left out, the policy decides, else yes.",
            "--check-loss-weight/--no-check-loss-weight",
            show_default=False,
        ),
    ] = None,
    result: Result,
) -> None:
    """Check the terms in TERMS.json without asking anybody: hash, noise, draws, payment, policy.

    The noise is recomputed from ε, δ and the number of draws; the payment must cover sensitivity × ε, also in part.

    Exit codes: 0 everything holds, 1 something does not, 2 bad input (one line on standard error).
    """
    from jsam.campaign.client.policy import Policy
    from jsam.campaign.sandboxed_check import check_loss_weight_apart
    from jsam.campaign.terms import Terms
    from jsam.campaign.verification import verify

    sources = [str(path) for path in (terms, policy) if path is not None]
    result.check(sources=sources)
    if ledger is not None and policy is None:
        raise InputError("--ledger needs --policy: it counts towards the policy's total")
    offered, limits = Terms.load(terms), None if policy is None else Policy.load(policy)
    if recomputed is None:
        recomputed = limits is None or limits.check_loss_weight
    found = verify(offered, sensitivity, samples)
    if recomputed:
        found += (check_loss_weight_apart(offered),)
    checks: list[dict[str, str]] = [asdict(check) for check in found]
    if limits is not None:
        checks += _policy_checks(offered, limits, ledger)
    ok = all(check["status"] != "violated" for check in checks)
    about = {"campaign": offered.campaign, "client": offered.client}
    content = {"ok": ok, **about, "checks": checks, "hash": offered.hash}
    result.deliver(lambda: content, "checks", lambda: _tables(offered, content))
    if not ok:
        raise typer.Exit(EXIT_VIOLATION)


def _policy_checks(terms: Terms, policy: Policy, ledger: Path | None) -> list[dict[str, str]]:
    from jsam.campaign.client.client_ledger import ClientLedger
    from jsam.campaign.statement import NOTHING

    others = NOTHING
    if ledger is not None:
        if not ledger.is_dir():
            raise InputError(f"--ledger {str(ledger)!r} is no folder; it must be one that a client keeps its books in")
        books = ClientLedger(ledger)
        books.check()
        others = books.committed(without=terms.campaign)
    objections = policy.judge(terms, others)
    if not objections:
        return [{"name": "policy", "status": "passed", "message": "the offer is within it"}]
    return [{"name": f"policy: {entry.code}", "status": "violated", "message": entry.text} for entry in objections]


def _tables(terms: Terms, content: dict[str, Any]) -> tuple[RenderableType, ...]:
    from rich.panel import Panel
    from rich.text import Text

    from jsam.privacy import Adjacency
    from jsam.report.tables import number

    about = (
        f"{terms.client} sells ε = {number(terms.epsilon)} at δ = {terms.delta:g} for {number(terms.payment)}, "
        f"in {terms.participations} draws.\nHidden is {Adjacency.of(terms.adjacency).words}."
    )
    verdict = "the terms hold" if content["ok"] else "DO NOT ACCEPT"
    head = Text(f"{terms.campaign}: {verdict}", style="green" if content["ok"] else "bold red")
    table = plain_table("check", "verdict", "found")
    table.columns[1].no_wrap = True
    for check in content["checks"]:
        status = check["status"]
        table.add_row(Text(check["name"]), Text(status, style=STYLES[status]), Text(check["message"]))
    return Panel(Text(about), title=head, title_align="left", expand=False, padding=(0, 2)), table
