"""Count, from the clients' own ledgers and from the server's books, whatever a federation must never do."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_store import campaign_id
from jsam.campaign.server.server_store import ServerStore
from jsam.flower.launch.federation import LocalFederation
from jsam.privacy import check_contract, read_ledger

VIOLATIONS = (
    "overspent_by_the_clients_ledgers",
    "overspent_by_the_servers_ledger",
    "clients_with_more_draws_than_the_server_asked_for",
    "replies_that_became_other_ones",
    "replies_unlike_what_the_client_recorded",
)
_LOOKED_AT = ("accounts_settled", "releases", "missing_slots", "replies_that_may_have_left", "replies_compared")


class Books:
    """Looks while a campaign goes on, and settles when it has ended. Every count is of distinct cases."""

    def __init__(self, federation: LocalFederation) -> None:
        self._clients = {name: ClientFiles.load(path) for name, path in federation.client_files.items()}
        self._cases: dict[str, set[tuple[object, ...]]] = {name: set() for name in VIOLATIONS}
        self._sums: Counter[str] = Counter()
        self._digests: dict[Path, str] = {}
        self._compared: set[tuple[str, str, str]] = set()

    def look(self, store: ServerStore, rules: CampaignRules) -> None:
        """Nobody is over; a reply that may have left is never another one later, nor another one at the server."""
        for name, files in self._clients.items():
            for entry in ClientLedger(files.ledger, files.policy).statement():
                if entry.overspent:
                    self._cases["overspent_by_the_clients_ledgers"].add((name, entry.campaign))
            for path in files.ledger.glob("campaigns/*/replies/*.sha256"):
                if self._digests.setdefault(path, path.read_text()) != path.read_text():
                    self._cases["replies_that_became_other_ones"].add((path,))
        for path in store.path.glob("replies/*/*.npz"):
            self._compare(path, rules)

    def _compare(self, path: Path, rules: CampaignRules) -> None:
        """What the server got against what the client stored as given out."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                name, release = str(stored["client"]), stored["release"]
        except FileNotFoundError:  # the round is over and in the model
            return
        buffer = io.BytesIO()
        np.save(buffer, release, allow_pickle=False)
        digest = self._folder(name, rules.campaign) / "replies" / f"{path.parent.name}.sha256"
        key = (rules.campaign, name, path.parent.name)
        self._compared.add(key)
        if not digest.exists() or digest.read_text() != hashlib.sha256(buffer.getvalue()).hexdigest():
            self._cases["replies_unlike_what_the_client_recorded"].add(key)

    def _folder(self, name: str, campaign: str) -> Path:
        return self._clients[name].ledger / "campaigns" / campaign_id(campaign)

    def settle(self, store: ServerStore, rules: CampaignRules) -> None:
        """Both sides' ledgers against the terms, each by two accountants."""
        agreement = store.agreement(rules)
        if agreement is None:
            return
        asked = read_ledger(store.run.ledger)
        bought = {name: terms.epsilon for name, terms in agreement.terms.items()}
        report = check_contract(asked, bought, rules.training.delta, second_opinion=True)
        over = {str(entry.client) for entry in report.violations}
        draws = {str(entry.client): entry.participations for entry in report.clients}
        over |= {name for name, terms in agreement.terms.items() if draws[name] > terms.participations}
        if not json.loads((store.path / "books.json").read_text())["kept"]:
            over.add("its books")
        self._cases["overspent_by_the_servers_ledger"] |= {(name, rules.campaign) for name in over}
        for name, terms in agreement.terms.items():
            own = read_ledger(self._folder(name, rules.campaign) / "releases.jsonl")
            if not check_contract(own, {name: terms.epsilon}, rules.training.delta, second_opinion=True).kept:
                self._cases["overspent_by_the_clients_ledgers"].add((name, rules.campaign))
            if sum(release.multiplicity for release in own) > draws[name]:
                self._cases["clients_with_more_draws_than_the_server_asked_for"].add((name, rules.campaign))
            self._sums["releases"] += len(own)
            self._sums["accounts_settled"] += 1
        self._sums["missing_slots"] += sum(len(record.get("missing", {})) for record in store.run.read_metrics())

    def as_dict(self) -> dict[str, Any]:
        sums = {**self._sums, "replies_that_may_have_left": len(self._digests), "replies_compared": len(self._compared)}
        return {name: sums.get(name, 0) for name in _LOOKED_AT} | {n: len(cases) for n, cases in self._cases.items()}
