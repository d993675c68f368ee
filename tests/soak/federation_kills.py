"""Kill -9 random SuperNodes, and the whole server, in real campaigns among real processes; count what the books say.

`python -m tests.soak.federation_kills --kills 50` writes results/soak/federation-kills.json; `make test` kills a few
times. Some federations go in plain text, some over TLS with a key for every SuperNode. A kill is one of three:

    node                    a SuperNode with all that it started, at a random moment
    node while answering    the same, just after its client's ledger recorded a release and before the reply is done
    answering process       only the process that answers, at such a moment

The SuperNode comes back as under a supervisor. In some campaigns the SuperLink and its ServerApp are killed too, and
the campaign is started again. The app that these runs ship is hostile: nodes that ran it would leave a trace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.identity import Certificates
from jsam.campaign.server.server_store import ServerStore
from jsam.flower.launch.app_folder import write_app
from jsam.flower.launch.deploy import Shares
from jsam.flower.launch.federation import LocalFederation
from tests.soak.federation_books import VIOLATIONS, Books
from tests.soak.federation_nodes import KINDS, Nodes

RESULT = Path("results/soak/federation-kills.json")
CLIENTS, ROUNDS, PER_ROUND = 3, 6, 3
LONGEST_CAMPAIGN = 1200.0
HOSTILE = """\
from pathlib import Path

Path({trace!r}).touch()
app = None
"""
LONGEST_WAIT = 5.0  # seconds; about what a message takes, so that kills fall into all of its stages


def soak(
    kills: int,
    folder: Path,
    *,
    seed: int,
    server_kills: int = 0,
    rounds: int = ROUNDS,
    tls: bool = False,
    order: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Kill until so many have hit and all campaigns have ended; what was done, and what was found in the books."""
    began, campaigns = time.monotonic(), 0
    names = [f"client-{k}" for k in range(CLIENTS)]
    certificates = Certificates.make(folder / "certificates", names) if tls else None
    # The same clients sell in every campaign, more together than the usual policy allows.
    policy = "total_epsilon = 1000.0\n"
    files = Shares.deal(_rules(0, rounds), clients=CLIENTS, dataset="digits").write(folder / "clients", policy)
    with LocalFederation(folder, certificates=certificates) as federation:
        for name, file in zip(names, files, strict=True):
            if tls:
                federation.register(name)
            federation.add_node(name, file)
        books = Books(federation)
        nodes = Nodes(federation, random.Random(seed), order)
        run = _Soak(federation, nodes, books, kills=kills, server_kills=server_kills)
        while not run.done:
            run.campaign(_rules(campaigns, rounds))
            campaigns += 1
    left = federation.started()
    return {
        "tls_and_keys": tls,
        "clients": CLIENTS,
        "campaigns": campaigns,
        "rounds_a_campaign": rounds,
        "kills_of_clients": sum(run.nodes.kills.values()),
        "kills_by_kind": {kind: run.nodes.kills[kind] for kind in KINDS},
        "on_disk_when_killed_while_answering": dict(sorted(run.nodes.stages.items())),
        "kills_of_the_server": run.found["server kills"],
        "campaigns_not_completed": run.found["not completed"],
        "shipped_app_was_run": run.found["shipped app"],
        "processes_left": len(left),
        **books.as_dict(),
        "seed": seed,
        "seconds": round(time.monotonic() - began),
    }


COUNTED = ("campaigns_not_completed", "shipped_app_was_run", "processes_left", *VIOLATIONS)


def violations(result: dict[str, Any]) -> dict[str, int]:
    """What must not happen and did."""
    return {name: result[name] for name in COUNTED if result[name]}


def _rules(number: int, rounds: int) -> CampaignRules:
    settings = {"loss_weight": 50.0, "max_epsilon": 10.0, "per_round": PER_ROUND, "learning_rate": 0.5}
    return CampaignRules.from_dict({"campaign": f"soak-{number}", "rounds": rounds, "seed": number, **settings})


class _Soak:
    def __init__(
        self, federation: LocalFederation, nodes: Nodes, books: Books, *, kills: int, server_kills: int
    ) -> None:
        self.federation, self.nodes, self.books = federation, nodes, books
        self.kills, self.server_kills = kills, server_kills
        self.found: Counter[str] = Counter()

    @property
    def done(self) -> bool:
        return sum(self.nodes.kills.values()) >= self.kills and self.found["server kills"] >= self.server_kills

    def campaign(self, rules: CampaignRules) -> None:
        folder, federation, rng = self.federation.folder, self.federation, self.nodes.rng
        store = ServerStore(folder / f"server-{rules.campaign}")
        trace = folder / "the-shipped-app-was-run"
        app = write_app(folder / "app", self._settings(rules, store), clientapp="hostile:app")
        (app / "hostile.py").write_text(HOSTILE.format(trace=str(trace)))
        run_id = federation.submit({}, app=app)
        at_round = (
            rng.randrange(1, rules.training.rounds)
            if self.found["server kills"] < self.server_kills
            else rules.training.rounds
        )
        deadline = time.monotonic() + LONGEST_CAMPAIGN
        while not store.outcome.exists():
            assert time.monotonic() < deadline, f"{rules.campaign} does not end"
            if len(store.run.read_metrics()) > at_round:
                time.sleep(rng.random())
                if store.outcome.exists():
                    break
                _kill_server(federation)
                federation.start_superlink()
                run_id = federation.submit({}, app=app)
                self.found["server kills"] += 1
                at_round = rules.training.rounds
            self.nodes.revive()
            if sum(self.nodes.kills.values()) < self.kills and self.nodes.all_connected:
                self.nodes.kill(rules.campaign, longest_wait=LONGEST_WAIT, over=store.outcome.exists)
            else:
                time.sleep(0.3)
            self.books.look(store, rules)
        completed = federation.wait(run_id, timeout=60, over=lambda: True).completed
        self.found["not completed"] += not completed
        self.found["shipped app"] += trace.exists()
        self.books.look(store, rules)
        self.books.settle(store, rules)

    def _settings(self, rules: CampaignRules, store: ServerStore) -> dict[str, Any]:
        patience = {"elicit_seconds": 60.0, "offer_seconds": 60.0, "round_seconds": 300.0, "repeat_seconds": 10.0}
        values = {**rules.as_dict(), "clients": CLIENTS, "store": str(store.path), "dataset": "", **patience}
        # A SuperNode that is refused its key for a minute after a kill may miss reports and offers.
        if (certificates := self.federation.certificates) is not None:
            values |= {"keys": str(certificates.folder), "elicit_seconds": 150.0, "offer_seconds": 150.0}
        return {**values, "min_share": 0.0, "rebind": self.federation.certificates is None}


def _kill_server(federation: LocalFederation) -> None:
    """The SuperLink and everything that it started, at once, as a power cut would."""
    assert federation.superlink is not None
    federation.superlink.kill()
    nodes = {child.group for child in federation.nodes.values()}
    for number in federation.started():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(number) not in nodes:
                os.kill(number, signal.SIGKILL)


def _share(seed: int, tls: bool, kills: int, server_kills: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="jsam-soak-") as folder:
        return soak(kills, Path(folder), seed=seed, server_kills=server_kills, tls=tls)


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50, help="of clients; a quarter of them under TLS")
    parser.add_argument("--server-kills", type=int, default=5, help="two in five of them under TLS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    tls_kills, tls_server = round(0.25 * options.kills), round(0.4 * options.server_kills)
    shares = ((False, options.kills - tls_kills, options.server_kills - tls_server), (True, tls_kills, tls_server))
    # Both at once: most of the time is spent waiting for Flower to notice a kill.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(_share, *zip(*((options.seed, *share) for share in shares), strict=True)))
    totals = {name: sum(entry[name] for entry in found) for name in ("kills_of_clients", "kills_of_the_server")}
    bad = dict(sum((Counter(violations(entry)) for entry in found), Counter()))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**totals, "violations": bad, "federations": found}, indent=1) + "\n")
    verdict = f"FOUND {bad}" if bad else "nobody overspent"
    sys.stdout.write(f"{totals['kills_of_clients']} kills, {verdict}: {options.output}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(_main())
