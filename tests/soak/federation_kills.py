"""Kill -9 random SuperNodes, and the whole server, at random moments of real campaigns among real processes.

`python -m tests.soak.federation_kills --kills 50` writes results/soak/federation-kills.json; `make test` kills a few
times. A kill hits a SuperNode with all that it started, or only the process that answers a message; the SuperNode comes
back at once. In some campaigns the SuperLink and its ServerApp are killed too, and the campaign is started again.

The app that these runs ship is hostile. Nodes that ran it would leave a trace and answer nothing.
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
from pathlib import Path
from typing import Any

from jsam.flower.app_folder import write_app
from jsam.flower.local import LocalFederation
from jsam.flower.local_campaign import deal_out
from jsam.flower.processes import Child
from jsam.flower.published import Published
from jsam.flower.server_store import ServerStore
from jsam.privacy import check_contract, read_ledger

RESULT = Path("results/soak/federation-kills.json")
CLIENTS, ROUNDS, PER_ROUND = 3, 6, 3
LONGEST_CAMPAIGN = 1200.0
HOSTILE = """\
from pathlib import Path

Path({trace!r}).touch()
app = None
"""
LONGEST_WAIT = 5.0  # seconds; about what a message takes, so that kills fall into all of its stages


def soak(kills: int, folder: Path, *, seed: int, server_kills: int = 0, rounds: int = ROUNDS) -> dict[str, Any]:
    """Kill until so many have hit and all campaigns have ended; raises AssertionError at the first ε too much."""
    rng, began = random.Random(seed), time.monotonic()
    found: Counter[str] = Counter()
    _arrivals_before.clear()
    rules = _rules(0, rounds)
    files = deal_out(folder / "clients", rules, clients=CLIENTS, dataset="digits")
    campaigns = 0
    with LocalFederation(folder) as federation:
        for k, file in enumerate(files):
            federation.add_node(f"client-{k}", file)
        while found["kills"] < kills or found["server kills"] < server_kills:
            server = found["server kills"] < server_kills
            _campaign(federation, folder, _rules(campaigns, rounds), rng, kills, found, kill_server=server)
            campaigns += 1
    return {
        "kills_of_clients": found["kills"],
        "of_those_only_the_answering_process": found["answering"],
        "kills_of_the_server": found["server kills"],
        "campaigns": campaigns,
        "rounds_a_campaign": rounds,
        "clients": CLIENTS,
        "releases": found["releases"],
        "replies_seen_twice_with_another_value": 0,
        "overspent_by_the_clients_ledgers": 0,
        "overspent_by_the_servers_ledger": 0,
        "missing_slots": found["missing"],
        "seed": seed,
        "seconds": round(time.monotonic() - began),
    }


def _rules(number: int, rounds: int) -> Published:
    return Published(
        campaign=f"soak-{number}",
        loss_weight=50.0,
        max_epsilon=10.0,
        rounds=rounds,
        per_round=PER_ROUND,
        learning_rate=0.5,
        seed=number,
    )


def _campaign(
    federation: LocalFederation,
    folder: Path,
    rules: Published,
    rng: random.Random,
    kills: int,
    found: Counter[str],
    *,
    kill_server: bool,
) -> None:
    store = ServerStore(folder / f"server-{rules.campaign}")
    values = {**rules.as_dict(), "clients": CLIENTS, "store": str(store.path), "dataset": "", "rebind": True}
    patience = {"elicit_seconds": 60.0, "offer_seconds": 60.0, "round_seconds": 300.0, "repeat_seconds": 20.0}
    app = write_app(folder / "app", {**values, **patience, "min_share": 0.0}, clientapp="hostile:app")
    trace = folder / "the-shipped-app-was-run"
    (app / "hostile.py").write_text(HOSTILE.format(trace=str(trace)))
    run_id = federation.submit({}, app=app)
    seen: dict[tuple[str, str], str] = {}
    at_round = rng.randrange(1, rules.rounds) if kill_server else -1
    deadline = time.monotonic() + LONGEST_CAMPAIGN
    while not store.outcome.exists():
        assert time.monotonic() < deadline, f"{rules.campaign} does not end"
        if kill_server and len(store.run.read_metrics()) > at_round:
            time.sleep(rng.random())
            if store.outcome.exists():
                break
            federation.kill_server()
            federation.start_superlink()
            run_id = federation.submit({}, app=app)
            found["server kills"] += 1
            kill_server = False
        if found["kills"] < kills and _all_connected(federation):
            time.sleep(rng.random() * LONGEST_WAIT)
            _kill(federation, rng, found)
        else:
            time.sleep(0.3)
        _check(federation, rules, seen)
    assert federation.wait(run_id, timeout=60, over=lambda: True).completed, store.outcome.read_text()
    _check(federation, rules, seen)
    assert not trace.exists()
    _settle(federation, store, rules, found)


def _kill(federation: LocalFederation, rng: random.Random, found: Counter[str]) -> None:
    name = rng.choice(sorted(federation.nodes))
    child = federation.nodes[name]
    if rng.random() < 0.2 and (answering := _answering(child.group)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(answering[0], signal.SIGKILL)
            found["answering"] += 1
    else:
        child.kill()
        _arrivals_before[name] = _arrivals(child)
        federation.start_node(name)
    found["kills"] += 1


def _all_connected(federation: LocalFederation) -> bool:
    """Whether every node is back: killing one that is still starting would hit nothing."""
    return all(_arrivals(child) > _arrivals_before.get(name, 0) for name, child in federation.nodes.items())


_arrivals_before: dict[str, int] = {}


def _arrivals(child: Child) -> int:
    """A SuperNode logs its id when the SuperLink has let it in; the log goes on after a restart."""
    return child.log.read_text(errors="replace").count("SuperNode ID")


def _answering(group: int) -> list[int]:
    """Processes of a SuperNode that were forked to answer a message."""
    members = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                members[int(stat.parent.name)] = int(fields[1])
    servers = {pid for pid in members if b"--serve" in (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")}
    return [pid for pid, parent in members.items() if parent in servers]


def _check(federation: LocalFederation, rules: Published, seen: dict[tuple[str, str], str]) -> None:
    """Nobody is over, and a reply that may have left is never another one later."""
    for name, entries in federation.statements().items():
        for entry in entries:
            assert not entry.overspent, f"{name} is over its contract in {entry.campaign}"
    for digest in federation.folder.glob("clients/*/ledger/campaigns/*/replies/*.sha256"):
        key = (digest.parts[-5], str(digest))
        assert seen.setdefault(key, digest.read_text()) == digest.read_text(), f"{digest} has changed"


def _settle(federation: LocalFederation, store: ServerStore, rules: Published, found: Counter[str]) -> None:
    agreement = store.agreement(rules)
    assert agreement is not None
    releases = read_ledger(store.run.ledger)
    bought = {name: terms.epsilon for name, terms in agreement.terms.items()}
    assert check_contract(releases, bought, rules.delta, second_opinion=True).kept
    own = {
        name: entry for name, entries in federation.statements().items() for entry in entries
        if entry.campaign == rules.campaign
    }  # fmt: skip
    for name, terms in agreement.terms.items():
        asked = sum(release.multiplicity for release in releases if release.client == name)
        assert own[name].participations <= asked <= terms.participations, name
        found["releases"] += own[name].releases
    found["missing"] += sum(len(record.get("missing", {})) for record in store.run.read_metrics())
    books = json.loads((store.path / "books.json").read_text())
    assert books["kept"]


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--server-kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jsam-soak-") as folder:
        result = soak(options.kills, Path(folder), seed=options.seed, server_kills=options.server_kills)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(f"{result['kills_of_clients']} kills, nobody overspent: {RESULT}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
