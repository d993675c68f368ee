"""Flower's grid without a network: real messages to real ClientApps in this process, with faults on demand."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.client.client_files import ClientFiles, client_folder, write_client
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.server.server_campaign import run_campaign
from jsam.campaign.server.server_options import ServerOptions
from jsam.campaign.server.server_store import ServerStore
from jsam.campaign.statement import Statement
from jsam.flower.client_app import client_app
from jsam.flower.messaging import FlowerTransport
from jsam.training.data import Dataset, load_dataset
from jsam.training.federated.server_model import InstalledModel
from jsam.training.task import TaskSpec

# A process of Flower's learns these when it starts.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

Fault = Callable[[Message], str | None]
"""What becomes of a message: None delivers it; "lost" before the client; "reply lost" after it; "error" says so."""

FAST = {"wait_seconds": 5.0, "elicit_seconds": 5.0, "offer_seconds": 5.0, "round_seconds": 20.0, "repeat_seconds": 3.0}


@dataclass
class LoopbackGrid(Grid):
    """Nodes by id, each a ClientApp with a node config. Time is counted, not waited for."""

    nodes: dict[int, tuple[ClientApp, dict[str, Any]]]
    fault: Fault = lambda message: None
    shuffle: bool = False
    keys: dict[int, bytes] = field(default_factory=dict)
    clock: float = 0.0
    log: list[Message] = field(default_factory=list)
    _waiting: dict[str, Message] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def transport(self) -> FlowerTransport:
        return FlowerTransport(self, now=self.now, sleep=self.sleep)

    def say(self, node: int, kind: str, content: RecordDict) -> tuple[dict[str, Any], Any]:
        """A message of a test's own making straight to a node: the words of the answer, and its release or None."""
        (message_id,) = self.push_messages([Message(content, dst_node_id=node, message_type=kind)])
        (reply,) = self.pull_messages([message_id])
        arrays = reply.content.array_records
        words = dict(reply.content.config_records["answer"])
        return words, arrays["release"]["gradient"].numpy() if "release" in arrays else None

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
            message.metadata.__dict__["_run_id"] = 1
            ids.append(message.metadata.message_id)
            self.log.append(message)
            reply = self._answer(message)
            if reply is not None:
                self._waiting[message.metadata.message_id] = reply
        return ids

    def _answer(self, message: Message) -> Message | None:
        fate = self.fault(message)
        node = message.metadata.dst_node_id
        if fate == "lost" or node not in self.nodes:
            return None
        if fate == "error":
            return Message(Error(code=5, reason="node unavailable"), reply_to=message)
        app, config = self.nodes[node]
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        reply = app(message, context)
        return None if fate == "reply lost" else reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = [key for key in message_ids if key in self._waiting]
        if self.shuffle:
            wanted.sort(reverse=True)
        return [self._waiting.pop(key) for key in wanted]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError


def no_noise(std: float, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(size, dtype=np.float32)


@dataclass
class Federation:
    """Clients with folders of their own under `folder`, and a grid to reach them."""

    folder: Path
    dataset: Dataset
    spec: TaskSpec
    files: list[Path]
    grid: LoopbackGrid

    @classmethod
    def make(
        cls,
        folder: Path,
        sensitivities: Sequence[float],
        *,
        noise: Callable[..., Any] | None = None,
        policies: dict[int, str] | None = None,
        seed: int = 0,
        sizes: tuple[int, ...] | None = None,
    ) -> Federation:
        dataset = load_dataset("digits")
        spec = TaskSpec(dataset="digits", num_clients=len(sensitivities), sizes=sizes, seed=seed)
        app = client_app() if noise is None else client_app(noise)
        files = [
            write_client(
                client_folder(folder / "clients", k),
                name=f"client-{k}",
                sensitivity=value,
                inputs=dataset.train_inputs[held],
                targets=dataset.train_targets[held],
                policy=(policies or {}).get(k),
            )
            for k, (value, held) in enumerate(zip(sensitivities, spec.split(dataset).indices, strict=True))
        ]
        # Node ids of 64 bits, as Flower's are: they do not survive a float.
        grid = LoopbackGrid({2**63 + 12345 + k: (app, {"client-file": str(file)}) for k, file in enumerate(files)})
        return cls(folder=folder, dataset=dataset, spec=spec, files=files, grid=grid)

    def copied(self, folder: Path) -> Federation:
        """The same clients and server with folders of their own; messages sent so far stay in the log."""
        shutil.copytree(self.folder, folder)
        files = [folder / path.relative_to(self.folder) for path in self.files]
        nodes = {
            node: (app, {"client-file": str(file)})
            for (node, (app, _)), file in zip(self.grid.nodes.items(), files, strict=True)
        }
        grid = LoopbackGrid(nodes, log=list(self.grid.log))
        return Federation(folder=folder, dataset=self.dataset, spec=self.spec, files=files, grid=grid)

    def options(self, **changes: Any) -> ServerOptions:
        values: dict[str, Any] = {"clients": len(self.files), "store": str(self.folder / "server"), "dataset": "digits"}
        return ServerOptions(**{**values, **FAST, **changes})

    def run(self, rules: CampaignRules, **options: Any) -> dict[str, Any]:
        return run_server(self.grid, rules, self.options(**options))

    def ledger(self, k: int) -> ClientLedger:
        files = ClientFiles.load(self.files[k])
        return ClientLedger(files.ledger, files.policy)

    def statement(self, k: int) -> Statement:
        (entry,) = self.ledger(k).statement()
        return entry


def run_server(grid: LoopbackGrid, rules: CampaignRules, options: ServerOptions) -> dict[str, Any]:
    """A campaign's server, as its app would run it."""
    model = InstalledModel(rules.model, seed=rules.rules.seed, dataset=options.dataset)
    return run_campaign(grid.transport(), ServerStore(options.store), rules, options, model)


def published(**changes: Any) -> CampaignRules:
    values: dict[str, Any] = {
        "campaign": "test",
        "loss_weight": 50.0,
        "max_epsilon": 10.0,
        "rounds": 3,
        "per_round": 4,
        "learning_rate": 0.5,
    }
    return CampaignRules.from_dict({**values, **changes})
