"""One record moves the sum by no more than its share, whatever it and the others are: rounding included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jsam.errors import InputError
from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.sensitivity import KINDS, worst_shift
from jsam.training.clipping import ClippingEngine, sample_weights, sums
from jsam.training.clipping.chunk_worker import Worker
from jsam.training.clipping.clipped_sum import LARGEST_RATIO
from jsam.training.clipping.layers import RULES, Call
from jsam.training.clipping.sums import Factors, RunningSum
from jsam.training.federated import parameters as flower_parameters
from jsam.training.federated.parameters import check_trains, clipped_mean, flattened
from jsam.training.models import build_model

BOUND = 1 + 1e-6


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["long gradients", "short gradients"])
def in_both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU adds long gradients in groups in fp32, and short ones in fp64; here both ways take the same ones."""
    monkeypatch.setattr(sums, "_LONG_ROW", 1 if request.param == "long gradients" else 1 << 40)


def running_fp32(self: RunningSum, rows: Tensor, factors: Factors, workspace: object) -> None:
    """How sums used to be: one running total in fp32."""
    flat = rows.view(-1, *rows.shape[-2:]).transpose(0, 1).flatten(1)
    total: Tensor = getattr(self, "plain", torch.zeros(flat.shape[1]))
    self.__dict__["plain"] = total.addmv_(flat.t(), factors.values.float())
    self._high, self._low = total.double(), None


@pytest.mark.usefixtures("in_both_ways")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [100, 10_000])
def test_no_record_moves_the_mean_by_more_than_its_share(kind: str, count: int) -> None:
    assert worst_shift(kind, count, takes=2) <= BOUND


@pytest.mark.slow
@pytest.mark.usefixtures("in_both_ways")
@pytest.mark.parametrize(
    ("kind", "count"), [*((kind, 100_000) for kind in KINDS), ("half ulps of the whole", 1_000_000)]
)
def test_no_record_of_many_moves_the_mean_by_more_than_its_share(kind: str, count: int) -> None:
    """A million records of every kind are the business of `python -m benchmarks.sensitivity`."""
    assert worst_shift(kind, count, takes=1 if count > 100_000 else 2) <= BOUND


def test_a_running_sum_in_fp32_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningSum, "add_rows", running_fp32)
    assert worst_shift("half ulps of the whole", 100_000, takes=1) > 2


def shift(worker: Callable[[], Worker], call: Call, weights: Tensor, clip_norm: float, i: int) -> float:
    """By how much record i moves the sum, in units of its weight times C. Without it its slot is no number."""
    found = []
    for emptied in (False, True):
        one, gradients = worker(), call.grad_outputs.clone()
        gradients[i] *= torch.nan if emptied else 1.0
        for start in range(0, len(weights), 300):
            part = slice(start, start + 300)
            one.add_chunk({"": [Call(call.inputs[part], gradients[part])]}, weights[part], clip_norm)
        found.append(torch.cat([value.flatten() for value in one.gradients().values()]))
    return float((found[0] - found[1]).norm()) / (float(weights[i]) * clip_norm)


def alike(layer: nn.Module) -> Callable[[], Worker]:
    return lambda: Worker({"": layer}, RULES)


def unequal(count: int) -> tuple[Call, Tensor]:
    """Heavy records of one client and, among them, light ones of others that have many records."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, 8, generator=source) * 10
    weights = torch.where(torch.arange(count) % 7 == 3, 2.0**-17, 2.0**-3)
    return Call(inputs, torch.randn(count, 2, 8, generator=source)), weights


@pytest.mark.usefixtures("in_both_ways")
def test_a_light_record_among_heavy_ones_moves_the_sum_by_no_more_than_its_own_share() -> None:
    call, weights = unequal(900)
    for i in (3, 10, 451, 899):
        assert 0.999 <= shift(alike(nn.Linear(8, 8)), call, weights, 1.0, i) <= BOUND


def test_heavy_and_light_records_in_one_group_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Had groups no regard to weights, the rounding of the heavy ones would outweigh the light one's share."""
    right = Factors.of

    def careless(norms: Tensor, weights: Tensor, clip_norm: float) -> Factors:
        return Factors(right(norms, weights, clip_norm).values, torch.ones_like(weights), 1.0)

    monkeypatch.setattr(sums, "_LONG_ROW", 1)
    monkeypatch.setattr(Factors, "of", careless)
    call, weights = unequal(900)
    assert max(shift(alike(nn.Linear(8, 8)), call, weights, 1.0, i) for i in (3, 10, 17, 24, 451)) > 1 + 1e-4


@pytest.mark.usefixtures("in_both_ways")
@pytest.mark.parametrize("kind", ["linear", "conv", "norm"])
def test_records_whose_parts_cancel_move_the_sum_by_no_more_than_their_share(kind: str) -> None:
    """Two positions of a record add 2²² and 1 − 2²²: its gradient is small, what it is made of is large."""
    count, large = 600, 2.0**22
    signs = torch.where(torch.rand(count, generator=torch.Generator().manual_seed(1)) < 0.5, -1.0, 1.0)
    pair = torch.tensor([large, 1.0 - large]).view(1, 2, 1) * signs.view(-1, 1, 1) * torch.linspace(0.3, 0.9, 8)
    ones = torch.ones(count, 2, 8)
    layers: dict[str, tuple[nn.Module, Call]] = {
        "linear": (nn.Linear(8, 8), Call(pair, ones)),
        "conv": (
            nn.Conv2d(8, 8, 1),
            Call(pair.transpose(1, 2).unsqueeze(2).contiguous(), ones.transpose(1, 2).unsqueeze(2).contiguous()),
        ),
        "norm": (nn.LayerNorm(8), Call(torch.randn(count, 2, 8), pair)),
    }
    layer, call = layers[kind]
    for i in (0, 100, 599):
        assert 0.999 <= shift(alike(layer), call, torch.full((count,), 1 / count), 1.0, i) <= BOUND


def test_tokens_whose_parts_cancel_move_the_sum_by_no_more_than_their_share() -> None:
    count, large = 600, 2.0**22
    pair = torch.tensor([large, 1.0 - large, 0.5]).view(1, 3, 1) * torch.linspace(0.3, 0.9, 4)
    tokens = torch.tensor([2, 2, 1]).expand(count, 3)
    call = Call(tokens, pair.expand(count, 3, 4).contiguous())
    for i in (0, 599):
        assert 0.999 <= shift(alike(nn.Embedding(5, 4)), call, torch.full((count,), 1 / count), 1.0, i) <= BOUND


def test_the_released_sum_is_rounded_only_after_noise() -> None:
    """In fp32 a mean of length C has steps of 6e-8 C; at a million records that is a sixteenth of one's share."""
    engine = ClippingEngine(nn.Linear(4, 3), clip_norm=1.0)
    found = engine.clipped_sum(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64), torch.ones(5))
    assert found.gradient.dtype == torch.float64
    inputs = np.random.default_rng(0).random((9, 1, 8, 8), dtype=np.float32)
    mean = clipped_mean("digits", flattened(build_model("digits", 0)), inputs, np.zeros(9, np.int64), 1.0)
    assert mean.dtype == np.float64
    assert np.any(mean != mean.astype(np.float32))


def test_more_records_than_the_bound_covers_are_refused() -> None:
    engine = ClippingEngine(nn.Linear(4, 3), clip_norm=1.0)
    weights = torch.tensor([1.0, 1.0, 1.0 / LARGEST_RATIO])
    with pytest.raises(InputError, match=r"an example weighs 5\.96e-08 of 2 in all"):
        engine.clipped_sum(torch.randn(3, 4), torch.zeros(3, dtype=torch.int64), weights)
    many = np.broadcast_to(np.zeros((1, 8, 8), np.float32), (2**24 + 1, 1, 8, 8))
    with pytest.raises(InputError, match="16777217 records are more than the 16777216"):
        check_trains("digits", many)
    check_trains("digits", many[1:])


def test_random_parameters_and_records_never_exceed_the_share() -> None:
    """The client's own mean under parameters over eighty decades, some not finite, records likewise: one is emptied, or
    replaced by another."""
    rng = np.random.default_rng(5)
    base = flattened(build_model("digits", 0))
    sizes = [value.numel() for value in build_model("digits", 0).parameters()]
    moved = 0.0
    for _ in range(40):
        count, clip_norm = int(rng.integers(2, 40)), float(10 ** rng.uniform(-6, 6))
        inputs = (rng.standard_normal((count, 1, 8, 8)) * 10 ** rng.uniform(-3, 3)).astype(np.float32)
        odd = int(rng.integers(0, count))
        with np.errstate(all="ignore"):
            inputs[odd] *= np.float32(rng.choice([1, 1, 0, np.inf, np.nan, 1e20, 1e37]))
        targets, parameters, offset = rng.integers(0, 10, count), base.copy(), 0
        for size in sizes:
            scale = 10 ** rng.choice([rng.uniform(-40, 38), rng.uniform(-12, 12), rng.uniform(-3, 3), 0])
            with np.errstate(all="ignore"):
                parameters[offset : offset + size] = (parameters[offset : offset + size] * scale).astype(np.float32)
            if rng.random() < 0.1:
                parameters[offset] = rng.choice([np.inf, np.nan, 3e38, -3e38])
            offset += size
        whole = clipped_mean("digits", parameters, inputs, targets, clip_norm)
        j, other, replaced = int(rng.integers(0, count)), targets.copy(), inputs.copy()
        other[j] = 10**6
        with np.errstate(all="ignore"):
            replaced[j] = rng.choice([0, 1e30, np.inf, np.nan, 1]) * rng.standard_normal((1, 8, 8))
        without = clipped_mean("digits", parameters, inputs, other, clip_norm)
        instead = clipped_mean("digits", parameters, replaced, targets, clip_norm)
        unit = clip_norm / count
        assert np.isfinite(whole).all()
        assert np.linalg.norm(whole - without) <= unit * BOUND
        assert np.linalg.norm(whole - instead) <= 2 * unit * BOUND
        moved = max(moved, float(np.linalg.norm(whole - without)) / unit)
    assert moved > 0.99, "some record must come close to its share"


class Operations(TorchDispatchMode):
    """Every tensor operation with the shapes it is given, and whether small numbers count as 0 there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Any, ...]] = []
        self.flushed: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = tuple(tuple(value.shape) for value in args if isinstance(value, Tensor))
        self.seen.append((str(func), shapes))
        if "convolution" in str(func):
            self.flushed.append(float(np.float64(2.0**-1022) / np.float64(2)) == 0)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def fresh_engines() -> Iterator[None]:
    """Engines with one worker, whose operations are seen; kept engines may have more."""
    flower_parameters._engine.cache_clear()
    yield
    flower_parameters._engine.cache_clear()


@pytest.mark.usefixtures("fresh_engines")
def test_the_same_operations_are_done_whatever_is_in_a_record() -> None:
    """A second pass, or another way, for a record that overflows would double the time that a reply takes."""
    model: Any = build_model("mnist", 0)
    with torch.no_grad():
        model[0].weight[0, 0, 3, 3] = 3e38
    parameters = flattened(model)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((60, 1, 28, 28)).astype(np.float32)
    inputs[:, :, 0::2, 0::2] = 0
    targets = rng.integers(0, 10, 60)
    for _ in range(2):
        # Until all memory is there that is kept from one call to the next.
        clipped_mean("mnist", parameters, inputs, targets, 1.0)
    seen, means = [], []
    for pixel, label in ((0.0, 3), (1.5, 3), (np.nan, 3), (1e-40, 3), (0.0, 10**6)):
        inputs[17, 0, 0, 0], targets[17] = pixel, label
        with Operations() as operations:
            means.append(clipped_mean("mnist", parameters, inputs, targets, 1.0))
        seen.append(operations.seen)
        assert operations.flushed
        assert all(operations.flushed)
    assert all(other == seen[0] for other in seen[1:])
    assert len(seen[0]) > 100
    # The record that overflows, the one that is no number and the one without a class count as nothing.
    assert np.array_equal(means[1], means[2])
    assert np.array_equal(means[1], means[4])
    assert not np.array_equal(means[1], means[0])
    assert float(np.float64(2.0**-1022) / np.float64(2)) > 0, "outside, small numbers are as they were"


def test_the_same_operations_are_done_where_gradients_are_per_sample() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(x * self.scale)
            return scores

    inputs, targets = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6, dtype=torch.int64)
    weights = sample_weights([6], [1], 1)
    with pytest.warns(UserWarning, match="per-sample"):
        engine = ClippingEngine(Own(), clip_norm=1.0)
    engine.clipped_sum(inputs, targets, weights)
    seen, found = [], []
    for value in (0.5, torch.inf, torch.nan):
        inputs[2, 1] = value
        with Operations() as operations:
            found.append(engine.clipped_sum(inputs, targets, weights))
        seen.append(operations.seen)
    assert seen[0] == seen[1] == seen[2]
    assert torch.isfinite(found[2].norms).tolist() == [True, True, False, True, True, True]
    assert bool(torch.isfinite(found[2].gradient).all())
    assert torch.equal(found[1].gradient, found[2].gradient)
