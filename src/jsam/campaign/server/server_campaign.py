"""A campaign on the server from the first question to the books, and again from wherever a kill left it."""

from __future__ import annotations

from typing import Any

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.server.agreement import agree
from jsam.campaign.server.asking import Office
from jsam.campaign.server.elicitation import elicit
from jsam.campaign.server.roster import Roster
from jsam.campaign.server.rounds import Rounds, ServerModel
from jsam.campaign.server.server_accounts import accounts_of
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.storage import Agreement, ServerStorage
from jsam.campaign.server.transport import Transport


def run_campaign(
    transport: Transport, store: ServerStorage, rules: CampaignRules, options: ServerOptions, model: ServerModel
) -> dict[str, Any]:
    """Begin the campaign, or go on with the one in the store; the books at its end."""
    store.begin(rules)
    # The lock first: a second server must not touch the first one's files.
    with store.writing() as ledger, store.telling_the_end():
        # Before anybody is asked: a client that has accepted holds ε ready for a campaign that could not begin.
        model.load()
        known = None if options.rebind else store.nodes()
        roster = Roster(transport, rebind=options.rebind, keys=options.public_keys(), known=known)
        office = Office(transport=transport, roster=roster, rules=rules, options=options)
        agreement = store.agreement(rules)
        if agreement is None:
            agreement = _agreed(office, store)
            store.save_agreement(rules, agreement, model.environment())
        rounds = Rounds(office, store, agreement, ledger, model)
        try:
            rounds.train()
        finally:
            books = accounts_of(agreement, tuple(ledger), rounds.answered, store.read_metrics())
            store.save_books(books)
        return books


def _agreed(office: Office, store: ServerStorage) -> Agreement:
    reports = store.reports(office.rules)
    if reports is None:
        reports, rejected = elicit(office)
        store.save_nodes(office.roster.names)
        store.save_reports(reports, rejected)
    else:
        _find(office, set(reports))
    return agree(office, reports, store, store.rejected())


def _find(office: Office, names: set[str]) -> None:
    """Wait until everybody who reported is online again, or the time is over."""
    transport, roster = office.transport, office.roster
    deadline = transport.now() + office.options.wait_seconds
    roster.refresh()
    while any(roster.node_of(name) is None for name in names) and transport.now() < deadline:
        transport.pause()
        roster.refresh()
