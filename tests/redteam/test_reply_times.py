"""When a reply leaves follows from the number of records and the model: the records themselves do not show in it."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from flwr.app import Message

from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.policy import Policy
from jsam.campaign.client.reply_times import SHORTEST_STEP, ReplyTimes, Work, step_for
from jsam.cli.supernode import supernode
from jsam.errors import InputError
from jsam.flower.client_app import client_app
from jsam.flower.launch.clientapp_launcher import OWN_APP, app_named
from jsam.training.federated import parameters
from jsam.training.federated.local_training import measured
from tests.flower.loopback import Federation, published


@dataclass
class _Clock:
    """Time that passes only when somebody sleeps or computes; computing takes `takes`."""

    time: float = 1000.0
    takes: float = 0.0
    slept: list[float] = field(default_factory=list)
    measured: list[Work] = field(default_factory=list)
    fails: bool = False

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.time += seconds

    def measure(self, work: Work) -> float:
        self.measured.append(work)
        return 0.35

    def noise(self, std: float, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.time += self.takes
        if self.fails:
            raise RuntimeError("a record broke it")
        return np.zeros(size, dtype=np.float32)

    def times(self) -> ReplyTimes:
        return ReplyTimes(now=self.now, sleep=self.sleep, measure=self.measure)


@dataclass
class _Watch:
    """A server that looks at the clock when a request goes out and when its reply is there."""

    federation: Federation
    clock: _Clock
    took: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        answer = self.federation.grid._answer

        def timed(message: Message) -> Message | None:
            began = self.clock.now()
            reply = answer(message)
            if message.metadata.message_type == "train":
                self.took.append(self.clock.now() - began)
            return reply

        self.federation.grid._answer = timed  # type: ignore[method-assign]


def _campaign(folder: Path, *, policy: str | None = None, paced: bool = True) -> tuple[Federation, _Clock, _Watch]:
    """One client whose replies take what the clock says."""
    clock = _Clock()
    federation = Federation.make(folder, [0.2], policies={} if policy is None else {0: policy})
    app = client_app(clock.noise, clock.times() if paced else None)
    federation.grid.nodes = {node: (app, config) for node, (_, config) in federation.grid.nodes.items()}
    return federation, clock, _Watch(federation, clock)


def _seen(folder: Path, takes: float, **options: Any) -> list[float]:
    federation, clock, watch = _campaign(folder, **options)
    clock.takes = takes
    federation.run(published(rounds=2))
    return [round(seconds, 9) for seconds in watch.took]


def test_a_reply_that_takes_longer_leaves_at_the_same_moment(tmp_path: Path) -> None:
    """Whatever lies below the step, here 1 s for a computation of 0.35 s, cannot be told apart; without it, it can."""
    quick, slow = (_seen(tmp_path / str(takes), takes) for takes in (0.05, 0.9))
    assert quick == slow == [1.0, 1.0]
    quick, slow = (_seen(tmp_path / f"bare {takes}", takes, paced=False) for takes in (0.05, 0.9))
    assert max(quick) < min(slow), "the same attack must succeed where replies do not wait"


def test_a_reply_that_takes_longer_than_the_step_waits_for_the_next_moment(tmp_path: Path) -> None:
    assert _seen(tmp_path, 1.3) == [2.0, 2.0]


def test_a_stored_reply_and_a_failure_leave_at_the_same_moments(tmp_path: Path) -> None:
    """A repeated answer computes nothing, and a computation that breaks ends early: neither may show."""
    federation, clock, watch = _campaign(tmp_path)
    clock.takes, clock.fails = 0.3, True
    lost: list[str] = []

    def fault(message: Message) -> str | None:
        if message.metadata.message_type != "train":
            return None
        lost.append(message.metadata.message_id)
        clock.fails = len(lost) == 1
        return "reply lost" if len(lost) == 2 else None

    federation.grid.fault = fault
    federation.run(published(rounds=1))
    assert len(lost) == 3
    assert [round(seconds, 9) for seconds in watch.took] == [1.0, 1.0, 1.0]


def test_a_reply_sleeps_and_does_not_spin(tmp_path: Path) -> None:
    federation, clock, watch = _campaign(tmp_path)
    federation.run(published(rounds=3))
    assert len(clock.slept) == len(watch.took) == 3


def test_the_step_is_found_once_and_kept_beside_the_ledger(tmp_path: Path) -> None:
    """Each message may come to a new process: it reads what was kept. What cannot be read is found again."""
    federation, clock, _ = _campaign(tmp_path)
    federation.run(published(rounds=3))
    assert len(clock.measured) == 1
    ledger = ClientFiles.load(federation.files[0]).ledger
    (kept,) = (ledger / "reply-steps").iterdir()
    assert clock.times().step(ledger, clock.measured[0]) == 1.0
    assert len(clock.measured) == 1
    for spoilt in (b"", b"{}", b'{"seconds": "1"}', b'{"seconds": 0.0}', b'{"seconds": NaN}', b"[1]"):
        kept.write_bytes(spoilt)
        assert clock.times().step(ledger, clock.measured[0]) == 1.0
    assert len(clock.measured) == 7


def test_the_step_follows_from_the_number_of_records_and_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients with other records, as many, are measured on the same made-up ones; none of theirs is looked at."""
    seen: list[tuple[bytes, bytes, bytes]] = []

    def watched(model: str, vector: Any, inputs: Any, targets: Any, clip_norm: float) -> Any:
        seen.append((vector.tobytes(), inputs.tobytes(), targets.tobytes()))
        return np.zeros_like(vector)

    monkeypatch.setattr(parameters, "clipped_mean", watched)
    works = []
    for seed in (1, 2):
        federation, clock, _ = _campaign(tmp_path / str(seed))
        data = federation.files[0].with_name("data.npz")
        rng = np.random.default_rng(seed)
        np.savez(data, inputs=rng.random((40, 1, 8, 8), dtype=np.float32), targets=rng.integers(0, 10, 40))
        federation.run(published(rounds=1))
        works += clock.measured
    assert works[0] == works[1]
    seen.clear()
    for work in works:
        measured(work.model, work.kind, work.shape, work.labels, now=lambda: 0.0)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len(np.frombuffer(seen[0][1], dtype=np.float32)) == 40 * 64


def test_the_measure_takes_the_records_form_and_computes_what_a_reply_computes() -> None:
    moments = iter([5.0, 7.5])
    assert measured("digits", "<f4", (20, 1, 8, 8), (20,), now=lambda: next(moments)) == 2.5


@given(st.floats(0, 1e4))
def test_a_step_leaves_room_for_twice_the_time_and_is_not_much_longer(seconds: float) -> None:
    step = step_for(seconds)
    assert step >= max(SHORTEST_STEP, 2 * seconds)
    assert step <= max(SHORTEST_STEP, 1.5 * 2 * (seconds + 0.1))


@pytest.mark.parametrize(("policy", "took"), [("reply_seconds = 0", 0.3), ("reply_seconds = 4.0", 4.0)])
def test_a_client_may_choose_the_step_or_none(policy: str, took: float, tmp_path: Path) -> None:
    assert _seen(tmp_path, 0.3, policy=policy) == [took, took]


def test_a_step_that_is_none_is_refused() -> None:
    for value in (-1.0, float("inf"), True, "2"):
        with pytest.raises(InputError, match="reply_seconds"):
            Policy(reply_seconds=value)  # type: ignore[arg-type]


def test_what_jsam_supernode_runs_waits() -> None:
    """By default, and with the clock of the system."""
    assert inspect.signature(supernode).parameters["app"].default == OWN_APP
    module = importlib.import_module("jsam.flower.client_app")
    assert app_named(OWN_APP) is module.deployed
    assert app_named(OWN_APP) is not module.app
