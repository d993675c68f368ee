"""The one loop: what is launched when, what is announced and kept, and where it ends."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from jsam.privacy import Release
from jsam.runs.noise_plan import NoisePlan
from jsam.training.round_loop import MEASURES, Announce, Block, NotFiniteError, Snapshot, blocks_between, made_rounds
from tests.training.small import SIZES, small_contract, small_settings

WEIGHTS = {"weight": torch.zeros(1)}


class NotedMaker:
    """Makes no rounds, and notes what it is asked to do."""

    def __init__(self, *, ahead: int, odd: int | None = None) -> None:
        self.plan = NoisePlan.of(small_contract(), small_settings(evaluate_every=3, checkpoint_every=4), SIZES)
        self.ahead, self.odd, self.notes = ahead, odd, list[str]()

    def blocks(self, done: int) -> Iterator[range]:
        return blocks_between(done, self.plan.settings)

    def launch(self, block: range, announce: Announce, *, evaluate: bool, snapshot: bool) -> Callable[[], Block]:
        for index in block:
            announce(self.plan.releases(self.plan.schedule.round(index)))
        self.notes.append(f"launch {block.stop}{' evaluate' if evaluate else ''}{' keep' if snapshot else ''}")

        def wait() -> Block:
            self.notes.append(f"read {block.stop}")
            rows = [[math.nan if index == self.odd else float(index)] * len(MEASURES) for index in block]
            return Block(measures=rows, snapshot=Snapshot(weights=WEIGHTS, velocity=None) if snapshot else None)

        return wait

    def wait(self) -> None:
        self.notes.append("over")


def rounds_of(maker: NotedMaker, **changes: Any) -> list[int]:
    return [made.rounds_done for made in made_rounds(maker, **changes)]


def test_as_many_blocks_are_under_way_as_the_maker_allows() -> None:
    maker = NotedMaker(ahead=0)
    assert rounds_of(maker) == list(range(1, 9))
    launches = ["launch 3 evaluate", "launch 4", "launch 6 evaluate", "launch 8 evaluate"]
    reads = ["read 3", "read 4", "read 6", "read 8"]
    assert maker.notes == [note for pair in zip(launches, reads, strict=True) for note in pair] + ["over"]
    maker = NotedMaker(ahead=1)
    assert rounds_of(maker, done=4) == [5, 6, 7, 8]
    assert maker.notes == ["launch 6 evaluate", "launch 8 evaluate", "read 6", "read 8", "over"]


def test_snapshots_come_where_a_checkpoint_is_due_if_they_are_wanted() -> None:
    maker = NotedMaker(ahead=1)
    kept = [made.rounds_done for made in made_rounds(maker, snapshots=True) if made.snapshot is not None]
    assert kept == [4, 8]


@pytest.mark.parametrize("ahead", [0, 1])
def test_rounds_before_one_that_is_not_finite_come_and_none_after_it(ahead: int) -> None:
    maker = NotedMaker(ahead=ahead, odd=4)
    rounds = made_rounds(maker)
    assert [next(rounds).rounds_done for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(NotFiniteError, match="round 5 of 8: the loss is nan"):
        next(rounds)
    assert next(rounds, None) is None
    assert maker.notes[-1] == "over"


def test_who_leaves_early_waits_until_the_device_is_done() -> None:
    maker = NotedMaker(ahead=1)
    with contextlib.closing(made_rounds(maker)) as rounds:
        next(rounds)
    assert maker.notes[-1] == "over"


def test_releases_are_announced_in_the_order_of_rounds() -> None:
    announced: list[Release] = []
    maker = NotedMaker(ahead=1)
    rounds_of(maker, announce=announced.extend)
    drawn = [release for index in range(8) for release in maker.plan.releases(maker.plan.schedule.round(index))]
    assert announced == drawn
