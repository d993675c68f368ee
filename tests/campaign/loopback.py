"""A campaign without Flower and without torch: questions go from hand to hand, and the model is a line of numpy."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jsam.campaign.client.answering import Client
from jsam.campaign.client.client_files import ClientFiles, client_folder, write_client
from jsam.campaign.messages import Encoded, Kind, Question, Reply, Vector
from jsam.errors import InputError

MODEL, FEATURES = "line", 3


@dataclass
class Line:
    """A linear model with squares for a loss, on both sides of the campaign."""

    inputs: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, FEATURES), dtype=np.float32))
    targets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def load(self) -> None:
        return

    def first(self) -> Vector:
        return np.zeros(FEATURES, dtype=np.float32)

    def environment(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def evaluate(self, parameters: Vector) -> dict[str, Any]:
        return {"loss": float(np.mean((self.inputs @ parameters - self.targets) ** 2))} if len(self.inputs) else {}

    def stored(self, parameters: Vector) -> bytes:
        return parameters.tobytes()

    def knows(self, model: str) -> bool:
        return model == MODEL

    def check_trains(self, model_name: str, inputs: NDArray[Any]) -> None:
        if inputs.shape[1:] != (FEATURES,):
            raise InputError("these inputs have another form")

    def try_records(self, model: str, files: ClientFiles) -> None:
        return

    def fits(self, model_name: str, vector: Vector) -> bool:
        return vector.shape == (FEATURES,)

    def clipped_mean(self, model: str, vector: Vector, files: ClientFiles, clip_norm: float) -> NDArray[np.float64]:
        inputs, targets = files.records()
        gradients = 2 * (inputs @ vector - targets)[:, None] * inputs.astype(np.float64)
        lengths = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
        mean: NDArray[np.float64] = (gradients * np.minimum(1.0, clip_norm / lengths)).mean(axis=0)
        return mean


@dataclass
class HandToHand:
    """A transport to clients in this process, whose clock moves only when somebody waits."""

    clients: dict[int, Client]
    clock: float = 0.0
    asked: list[tuple[int, Question]] = field(default_factory=list)
    _waiting: dict[str, Reply] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def nodes(self) -> set[int]:
        return set(self.clients)

    def public_keys(self) -> dict[int, str]:
        return dict.fromkeys(self.clients, "")

    def send(self, node: int, question: Question, *, seconds: float) -> str | None:
        self.asked.append((node, question))
        message_id = f"message {next(self._ids)}"
        answer = self.clients[node].answer(question)
        release = None
        if answer.release is not None:
            data = _saved(answer.release)
            release = Encoded(form="numpy.ndarray", dtype="float32", shape=answer.release.shape, data=data)
        self._waiting[message_id] = Reply(message_id=message_id, values=answer.values, release=release)
        return message_id

    def collect(self, message_ids: Iterable[str]) -> list[Reply]:
        return [self._waiting.pop(message_id) for message_id in list(message_ids) if message_id in self._waiting]

    def now(self) -> float:
        return self.clock

    def pause(self) -> None:
        self.clock += 0.25

    def kinds(self) -> list[Kind]:
        """The kinds of questions that were asked, each once, in the order of their first."""
        return list(dict.fromkeys(question.kind for _, question in self.asked))


def linear_clients(
    folder: Path, sensitivities: list[float], *, records: int | Sequence[int] = 40
) -> tuple[HandToHand, Line]:
    """Clients whose targets lie on one line, and the server's model with test data of its own."""
    counts = [records] * len(sensitivities) if isinstance(records, int) else list(records)
    rng, line = np.random.default_rng(0), np.array([2.0, -1.0, 1.0])
    clients = {}
    for k, sensitivity in enumerate(sensitivities):
        inputs = rng.integers(-2, 3, (counts[k], FEATURES)).astype(np.float32)
        targets = (inputs @ line).astype(np.int64)
        file = write_client(
            client_folder(folder, k), name=f"client-{k}", sensitivity=sensitivity, inputs=inputs, targets=targets
        )
        clients[k + 1] = Client(load=lambda file=file: ClientFiles.load(file), training=Line())  # type: ignore[misc]
    inputs = rng.integers(-2, 3, (200, FEATURES)).astype(np.float32)
    return HandToHand(clients), Line(inputs=inputs, targets=(inputs @ line).astype(np.int64))


def _saved(release: Vector) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, release)
    return buffer.getvalue()
