"""Whether the time of a reply tells that one record is there: 200 replies with it, 200 without, from real client apps.

`python -m benchmarks.reply_times` writes results/benchmarks/reply-times.json; each of its two cases takes 5 to 15
minutes, and `--case` runs one of them. In the case "overflowing" the server sends parameters under which the gradient
of one record overflows, and only of that one. In the case "raising" the model is a class of somebody's own whose code
raises at numbers that are not finite, and the parameters bring these about for one record. The file has the first case,
and the second one under its name.

The threshold on the time is fitted to one half of the replies and tried on the other, and the other way round: fitted
and tried on the same 400 replies it would tell apart about 54% of times that have nothing to tell. The bar is 55%.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from benchmarks.output import machine
from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import write_client
from jsam.campaign.client.reply_times import ReplyTimes
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.terms import Terms
from jsam.flower.client_app import client_app, reply_seconds
from jsam.training.federated.parameters import flattened
from jsam.training.models import build_model

RESULT = Path("results/benchmarks/reply-times.json")
BAR = 0.55
Times = NDArray[np.float64]
Trap = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]
"""Records without the one that is looked for, the same with it, labels, and parameters that are odd for it alone."""

RAISING = """\
import torch
from torch import nn

class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.first(x)
        if not torch.isfinite(h).all():
            raise ArithmeticError("not finite")
        return self.last(torch.relu(h))
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, how many records there are, and what the server tries."""

    model: str
    samples: int
    trap: Callable[[int], Trap]


class Client:
    """One client with its own folder, and the seconds that each of its replies took: before it waited, and in all."""

    def __init__(
        self, folder: Path, model: str, inputs: NDArray[np.float32], targets: NDArray[np.int64], rounds: int
    ) -> None:
        self.folder, self.samples, self._slept = folder, len(targets), 0.0
        file = write_client(folder, name="a", sensitivity=0.2, inputs=inputs, targets=targets)
        self._app = client_app(times=ReplyTimes(measure=reply_seconds, sleep=self._sleep))
        self._context = Context(
            run_id=1, node_id=7, node_config={"client-file": str(file)}, state=RecordDict(), run_config={}
        )
        settings = {"loss_weight": 50.0, "learning_rate": 0.1, "delta": 1e-6}
        rules = CampaignRules.from_dict({"campaign": "x", "model": model, "rounds": rounds, **settings})
        self._say("query.elicit", RecordDict({"published": ConfigRecord({"text": rules.to_json()})}))
        contract = rules.contract(["a", "b", "c"], [0.2, 0.3, 0.4])
        self.terms = Terms.of_contract(
            campaign="x", client="a", epsilon=2.0, delta=1e-6, participations=rounds, clip_norm=1.0,
            samples=self.samples, adjacency="add-remove", payment=2.0, public=rules.inputs(3, contract.loss_weight),
        )  # fmt: skip
        answer = self._say("query.offer", RecordDict({"offer": ConfigRecord({"terms": self.terms.to_json()})}))
        if "accepted" not in answer.content.config_records["answer"]:
            raise SystemExit(f"the offer was declined: {dict(answer.content.config_records['answer'])}")

    def _sleep(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self._slept += time.monotonic() - began

    def _say(self, kind: str, content: RecordDict) -> Message:
        message = Message(content, dst_node_id=7, message_type=kind, ttl=1000.0)
        message.metadata.__dict__["_message_id"], message.metadata.__dict__["_run_id"] = "m", 1
        return self._app(message, self._context)

    def ask(self, round: int, parameters: NDArray[np.float32]) -> tuple[float, float]:
        """Seconds that the reply of this round took: its computation, and until it left."""
        asked: dict[str, Any] = {
            **RoundRequest.of_terms(self.terms, round=round, multiplicity=1).as_dict(),
            "ask_id": "a",
        }
        model = ArrayRecord({"parameters": Array(parameters)})
        self._slept, began = 0.0, time.monotonic()
        reply = self._say("train", RecordDict({"request": ConfigRecord(asked), "model": model}))
        took = time.monotonic() - began
        if "release" not in reply.content.array_records:
            raise SystemExit(f"no release: {dict(reply.content.config_records['answer'])}")
        return took - self._slept, took


def overflowing(samples: int) -> Trap:
    rng = np.random.default_rng(0)
    without = (rng.standard_normal((samples, 1, 28, 28)) * 0.3).astype(np.float32)
    without[:, :, 0::2, 0::2] = 0
    with_it = without.copy()
    with_it[17, 0, 0, 0] = 1.5
    model = build_model("mnist", 0)
    with torch.no_grad():
        next(model.parameters())[0, 0, 3, 3] = 3e38
    return without, with_it, rng.integers(0, 10, samples), flattened(model)


def raising(samples: int) -> Trap:
    rng = np.random.default_rng(0)
    without = rng.random((samples, 12)).astype(np.float32)
    without[:, 5] = 0
    with_it = without.copy()
    with_it[samples - 3, 5] = 2.0
    model = build_model("raising", 0)
    with torch.no_grad():
        next(model.parameters())[:, 5] = 3e38
    return without, with_it, rng.integers(0, 4, samples), flattened(model)


CASES = {
    "overflowing": Case(model="mnist", samples=3000, trap=overflowing),
    "raising": Case(model="raising", samples=400, trap=raising),
}


def offer_model(folder: Path) -> None:
    """Installs, for this process, a package that offers the model `raising`, as pip would leave it behind."""
    about = folder / "raising-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: raising\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[jsam.models]\nraising = raising_model:Raising\n")
    (folder / "raising_model.py").write_text(RAISING)
    sys.path.insert(0, str(folder))


def fitted(without: Times, with_it: Times) -> tuple[float, bool]:
    """The threshold that tells these apart best, and whether later than it means that the record is there."""
    places = np.unique(np.concatenate([without, with_it]))
    right = [np.mean(with_it > place) - np.mean(without > place) for place in places]
    best = int(np.argmax(np.abs(right)))
    return float(places[best]), bool(right[best] >= 0)


def accuracy(threshold: float, later: bool, without: Times, with_it: Times) -> float:
    share = (np.mean(with_it > threshold) + np.mean(without <= threshold)) / 2
    return float(share if later else 1 - share)


def told_apart(without: Times, with_it: Times) -> dict[str, float]:
    """The share of replies that a threshold tells right, on replies that it was not fitted to, and on those it was."""
    halves = [(without[k::2], with_it[k::2]) for k in (0, 1)]
    held_out = [accuracy(*fitted(*halves[k]), *halves[1 - k]) for k in (0, 1)]
    return {
        "held_out": round(float(np.mean(held_out)), 4),
        "in_sample": round(accuracy(*fitted(without, with_it), without, with_it), 4),
        "median_without": round(float(np.median(without)), 4),
        "median_with": round(float(np.median(with_it)), 4),
    }


def measure(folder: Path, case: Case, *, replies: int, samples: int) -> dict[str, Any]:
    without, with_it, targets, parameters = case.trap(samples)
    clients = [
        Client(folder / f"{k}", case.model, data, targets, replies + 1) for k, data in enumerate((without, with_it))
    ]
    clients[0].ask(0, parameters)  # builds the engine and finds the step
    # Found twice, it could fall on two sides of a bound by chance, which has nothing to do with the record.
    steps = [client.folder / "ledger" / "reply-steps" for client in clients]
    shutil.copytree(steps[0], steps[1])
    clients[1].ask(0, parameters)
    times = np.zeros((2, replies, 2))
    for round in range(replies):
        for k in ((0, 1), (1, 0))[round % 2]:
            times[k, round] = clients[k].ask(round + 1, parameters)
    found = {name: told_apart(times[0, :, i], times[1, :, i]) for i, name in enumerate(("unpadded", "as_sent"))}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": case.model,
        "records": samples,
        "replies_each": replies,
        "threads": torch.get_num_threads(),
        **found,
        "bar": BAR,
        "met": found["as_sent"]["held_out"] <= BAR,
        **machine(("jsam", "flwr", "torch", "numpy")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="this one alone, the other one as it is in the file")
    parser.add_argument("--replies", type=int, default=200, help="of each kind")
    parser.add_argument("--samples", type=int, help="3000 and 400 if not given")
    parser.add_argument("--threads", type=int, default=1, help="of torch; a SuperNode that jsam starts has one")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    found: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    with tempfile.TemporaryDirectory(prefix="jsam-bench-") as folder:
        offer_model(Path(folder) / "site")
        for name in CASES if options.case is None else (options.case,):
            case = CASES[name]
            samples = options.samples or case.samples
            new = measure(Path(folder) / name, case, replies=options.replies, samples=samples)
            other = {"raising": found["raising"]} if "raising" in found else {}
            found = {**new, **other} if name == "overflowing" else {**found, name: new}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
