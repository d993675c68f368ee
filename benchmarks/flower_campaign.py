"""A hundred virtual clients on Flower's simulation engine, and the same contract in our own loop, side by side.

`python -m benchmarks.flower_campaign` writes results/benchmarks/flower.json. The apps are those of a deployment: every
reply goes through a client's ledger on disk.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.simulated_federation import SimulatedFederation
from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.server.server_store import ServerStore
from jsam.flower.launch.deploy import Shares
from jsam.mechanism.contract_files import load_contract
from jsam.training.environment import versions
from jsam.training.recorded_run import train
from jsam.training.task import TaskSpec

RESULT = Path("results/benchmarks/flower.json")


def measure(folder: Path, *, clients: int, per_round: int, rounds: int, dataset: str) -> dict[str, Any]:
    published = {"loss_weight": 500.0, "max_epsilon": 10.0, "learning_rate": 0.1, "model": dataset}
    rules = CampaignRules.from_dict({"campaign": "benchmark", "rounds": rounds, "per_round": per_round, **published})
    store = ServerStore(folder / "server")
    Shares.deal(rules, clients=clients, dataset=dataset).write(folder / "clients")
    moments: list[float] = []

    def over() -> bool:
        done = len(store.run.read_metrics())
        moments.extend([time.perf_counter()] * (done - len(moments)))
        return store.outcome.exists()

    began = time.perf_counter()
    with SimulatedFederation(folder, folder / "clients") as federation:
        values = {**rules.as_dict(), "clients": clients, "store": str(store.path)}
        run_id = federation.submit(values)
        # Looked at often, or a round would seem to take as long as the looks are apart.
        while not over():
            time.sleep(0.02)
        assert federation.wait(run_id, timeout=120, over=store.outcome.exists).completed
    whole = time.perf_counter() - began

    settings = replace(rules.training, evaluate_every=rounds, checkpoint_every=rounds, threads=None)
    task = TaskSpec(dataset=dataset, num_clients=clients, seed=rules.rules.seed).build()
    result = train(load_contract(store.run.contract), task, settings, folder / "own")
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments[1:])]
    return {
        "dataset": dataset,
        "clients": clients,
        "per_round": per_round,
        "rounds": rounds,
        "cores": os.cpu_count(),
        "flower_seconds_a_round": round(statistics.median(gaps), 3),
        "flower_seconds_of_the_first_round": round(moments[1] - moments[0], 3),
        "flower_seconds_from_start_to_end": round(whole, 1),
        "own_seconds_a_round": round(result.seconds / rounds, 4),
        **versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--per-round", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dataset", default="mnist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jsam-bench-") as folder:
        found = measure(Path(folder), **vars(options))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
