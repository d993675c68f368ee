"""What a card decides, as plain functions: its arithmetic, kernels, chunks and margins. Nothing here needs a GPU."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from jsam.errors import InputError
from tests.conftest import require

torch = require("torch", extra="train")

from torch import Tensor, nn  # noqa: E402

from jsam.training.clipping import ClippingEngine  # noqa: E402
from jsam.training.clipping.chunk_worker import Worker  # noqa: E402
from jsam.training.clipping.chunking import Footprint, memory_of, samples_a_chunk, spans  # noqa: E402
from jsam.training.clipping.clipped_sum import (  # noqa: E402
    LONGEST_CHAIN,
    LONGEST_FP32_SUM,
    NORM_MARGIN,
    SAFETY_MARGIN,
    TILE_CHAIN,
    clip_factors,
)
from jsam.training.clipping.gpu import fits_kernels, runs_kernels  # noqa: E402
from jsam.training.clipping.gpu.tiles import most_outer_rows, outer_share_for, share_for, tile_for  # noqa: E402
from jsam.training.clipping.layers.layer_rule import row_norms  # noqa: E402
from jsam.training.clipping.precision import PRECISIONS, checked_precision, precision_for  # noqa: E402
from jsam.training.clipping.sums import add_in_order  # noqa: E402
from jsam.training.models import build_model  # noqa: E402


@pytest.mark.parametrize("capability", [(3, 7), (6, 1), (7, 0), (7, 5)])
@pytest.mark.parametrize("name", ["tf32", "bf16"])
def test_cards_before_ampere_are_refused_what_they_would_not_compute(name: str, capability: tuple[int, int]) -> None:
    words = ".".join(map(str, capability))
    with pytest.raises(
        InputError, match=rf"'{name}'; this card's .* is {words} and {name} needs 8\.0 .* use fp32"
    ) as e:
        precision_for(name, "cuda", capability)
    assert "\n" not in str(e.value)
    assert precision_for("fp32", "cuda", capability) == "fp32"
    assert not fits_kernels(capability)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 1)])
def test_cards_from_ampere_on_have_every_precision_and_the_kernels(capability: tuple[int, int]) -> None:
    for name in PRECISIONS:
        assert precision_for(name, "cuda", capability) == name
    assert fits_kernels(capability)


def test_without_a_card_there_are_no_kernels_and_no_precision_to_speak_of() -> None:
    assert not fits_kernels(None)
    assert not runs_kernels(torch.device("cpu"))
    assert precision_for("fp32", "cpu", None) == "fp32"
    with pytest.raises(InputError, match="the CPU computes in fp32 only"):
        precision_for("bf16", "cpu", None)
    with pytest.raises(InputError, match="must be one of: fp32, tf32, bf16"):
        precision_for("fp8", "cuda", (9, 0))


def test_an_old_card_is_asked_and_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes to the plain rules there, Triton or not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr("jsam.training.clipping.gpu.has_triton", lambda: True)
    assert not runs_kernels(torch.device("cuda"))
    with pytest.raises(InputError, match=r"compute capability is 7\.5"):
        checked_precision("bf16", "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert runs_kernels(torch.device("cuda"))
    assert checked_precision("bf16", "cuda:1") == "bf16"


# Floats of one example: what the passes capture, and all convolution weights and biases.
MNIST, CIFAR = Footprint(captured=8010, kept=9264), Footprint(captured=189_706, kept=287_008)


@pytest.mark.parametrize(
    ("name", "shape", "expected"), [("mnist", (1, 28, 28), MNIST), ("cifar10", (3, 32, 32), CIFAR)]
)
def test_the_papers_models_have_these_footprints(name: str, shape: tuple[int, ...], expected: Footprint) -> None:
    model = build_model(name, 0)
    engine = ClippingEngine(model, clip_norm=1.0, workers=1)
    engine.clipped_sum(torch.randn(2, *shape), torch.zeros(2, dtype=torch.int64), torch.ones(2))
    # On the CPU no gradient is kept beyond its block.
    assert engine._fused._footprint == Footprint(captured=expected.captured)
    kept = (p for m in model.modules() if isinstance(m, nn.Conv2d) for p in m.parameters())
    assert sum(p.numel() for p in kept) == expected.kept


@pytest.mark.parametrize(("footprint", "samples"), [(MNIST, 6000), (CIFAR, 5000)])
def test_a_large_card_takes_a_whole_round_at_once_as_its_activations_allow(footprint: Footprint, samples: int) -> None:
    found = samples_a_chunk(footprint, "cuda", 139 << 30)
    assert found == min(65_535, (8 << 30) // (4 * footprint.captured))
    assert list(spans(samples, found)) == [(0, samples)]


@pytest.mark.parametrize("gigabytes", [2, 8, 16, 24, 40, 80, 139])
@pytest.mark.parametrize("footprint", [MNIST, CIFAR, Footprint(captured=20_000, kept=12_000_000)])
def test_what_is_captured_and_kept_stays_within_a_quarter_of_a_card(footprint: Footprint, gigabytes: int) -> None:
    memory = gigabytes << 30
    n = samples_a_chunk(footprint, "cuda", memory)
    assert n >= 1
    assert 4 * n * (footprint.captured + footprint.kept) <= memory // 4
    assert 4 * n * footprint.captured <= 8 << 30
    # No smaller than it must be.
    more = 4 * (n + 1)
    full = more * (footprint.captured + footprint.kept) > memory // 4 or more * footprint.captured > 8 << 30
    # The last axis of a CUDA grid, along which kernels number examples, has no more.
    assert full or n == 65_535


def test_chunks_on_the_cpu_know_no_card() -> None:
    assert memory_of(torch.device("cpu")) is None
    assert samples_a_chunk(Footprint(captured=8010), "cpu", None) == (12 << 20) // (4 * 8010)


def adversarial(length: int, chains: int) -> Tensor:
    """Each chain begins with 1 and goes on with numbers whose squares are just too small to be seen beside it."""
    values: Tensor = torch.full((length,), math.sqrt(0.49 * 2.0**-23))
    values[:chains] = 1.0
    return values


def chained_norm(values: Tensor, chains: int) -> float:
    """As a GPU's threads do: each adds its own in turn, then they are added in pairs, in fp32 throughout."""
    sums = torch.zeros(chains)
    for row in values.view(-1, chains):
        sums = sums + row * row
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return float(sums.sqrt())


@pytest.mark.parametrize("chains", [8, 32])
def test_the_margin_covers_sums_made_to_lose_as_much_as_they_can(chains: int) -> None:
    """A CPU's vector of 8 or a warp to the longest sum; then a Linear layer's product of two such norms."""
    values = adversarial(LONGEST_FP32_SUM, chains)
    short = 1 - chained_norm(values, chains) / float(values.double().norm())
    assert short > 3e-7
    assert 1 - short > 1 - NORM_MARGIN
    assert (1 - short) ** 2 > 1 - SAFETY_MARGIN
    # And, in the longer chains, not much more than that.
    assert chains > 8 or 2.2 * short + 2e-6 > NORM_MARGIN


@pytest.mark.parametrize("length", [512, 513, 8192, 100_000])
def test_no_row_makes_a_norm_shorter_than_the_margin_allows(length: int) -> None:
    """torch's own sums, contiguous or not, of rows made against chains of one lane and of 4 to 64."""
    rows = torch.stack([adversarial(length, chains) for chains in (1, 4, 8, 16, 32, 64)])
    exact = rows.double().norm(dim=1)
    for given in (rows, rows.t().contiguous().t()):
        short = 1 - row_norms(given).double() / exact
        assert float(short.max()) < SAFETY_MARGIN / 2


def test_a_convolution_made_to_lose_as_much_as_it_can_stays_within_its_norm() -> None:
    """One output position, so that an example's gradient is its input times g: chosen against the sums of norms."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(512, 8, 4, bias=False), nn.Flatten())
    inputs = torch.stack([adversarial(8192, chains) for chains in (1, 8, 16, 32, 256)]).view(-1, 512, 4, 4)
    engine = ClippingEngine(model, clip_norm=1e-3, workers=1)
    for i in range(len(inputs)):
        weights = torch.zeros(len(inputs))
        weights[i] = 1.0
        found = engine.clipped_sum(inputs, torch.zeros(len(inputs), dtype=torch.int64), weights).gradient
        assert float(found.double().norm()) <= 1e-3 * (1 + 1e-7)


def test_factors_aim_below_the_clipping_norm_by_the_margin() -> None:
    norms = torch.rand(50, generator=torch.Generator().manual_seed(1)) * 3
    assert torch.equal(clip_factors(norms, 0.7), (1 / norms * (0.7 * (1 - SAFETY_MARGIN))).clamp(max=1.0))


def test_no_tile_adds_longer_chains_than_the_margin_counts() -> None:
    for outputs, channels, kernel, positions, kind in itertools.product(
        (1, 16, 32, 33, 64, 128, 512),
        (1, 3, 16, 64, 256),
        (1, 9, 25, 64),
        (1, 32, 49, 64, 1024),
        ("fp32", "tf32", "bf16"),
    ):
        tile = tile_for(outputs, channels, channels * kernel, positions, kind)
        threads = 32 * tile.warps
        entries = tile.outputs * tile.columns / threads
        assert entries <= 128
        assert 1 + entries + math.log2(threads) <= TILE_CHAIN


@pytest.mark.parametrize(
    ("n", "size"),
    [(1, 1), (6000, 1024), (6000, 8192), (5000, 864), (5000, 147_456), (65_535, 7), (65_535, 10**8), (9, 10**8)],
)
def test_a_weighted_sum_is_shared_out_to_whole_steps_and_enough_programs(n: int, size: int) -> None:
    share = share_for(n, size)
    parts = -(-n // share.rows)
    assert share.rows % share.step == 0
    # Partial sums, written and read in fp64, are little beside rows in bf16.
    assert 16 * parts <= 2 * n / 7 or parts == 1
    assert share.rows / share.step + share.step + parts <= LONGEST_CHAIN
    assert parts * -(-size // share.columns) >= min(1400, 2 * (n // 64)) or parts == 128


@pytest.mark.parametrize("n", [1, 33, 6000, 1 << 20])
@pytest.mark.parametrize(("outputs", "size"), [(1, 1), (10, 32), (32, 512), (128, 2048), (50_000, 50_000)])
def test_a_sum_of_outer_products_has_no_longer_chains_than_the_margin_counts(n: int, outputs: int, size: int) -> None:
    n = min(n, most_outer_rows(outputs, size))
    _, share = outer_share_for(n, outputs, size)
    parts = -(-n // share.rows)
    assert share.rows % share.step == 0
    assert share.rows + parts <= LONGEST_CHAIN
    # Of the memory that a small card has.
    assert parts == 1 or parts * outputs * size <= 1 << 27
    # In a bias entry the rows of a step are added last.
    assert share.rows // share.step + share.step + parts <= LONGEST_CHAIN


@pytest.mark.parametrize("sort", [False, True])
def test_rows_are_added_up_the_same_in_either_way(sort: bool) -> None:
    """The order-keeping way is CUDA's; on the CPU the plain one stays, to the bit."""
    source = torch.Generator().manual_seed(2)
    rows, values = torch.randint(0, 7, (200,), generator=source), torch.randn(200, 5, generator=source)
    total = torch.ones(9, 5)
    add_in_order(total, rows, values, sort=sort)
    expected = 1 + nn.functional.one_hot(rows, 9).double().t() @ values.double()
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(total[7:], torch.ones(2, 5))
    if not sort:
        assert torch.equal(total, torch.ones(9, 5).index_add_(0, rows, values))


def test_a_small_card_takes_a_batch_in_pieces_that_count_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jsam.training.clipping.fused.memory_of", lambda device: 4 * 4 * 100 * 1000)
    monkeypatch.setattr(Worker, "kept_floats", lambda self, calls: 980)
    sizes, add_chunk = [], Worker.add_chunk

    def counted(self: Worker, calls: Any, weights: Tensor, clip_norm: float) -> Tensor:
        sizes.append(len(weights))
        return add_chunk(self, calls, weights, clip_norm)

    monkeypatch.setattr(Worker, "add_chunk", counted)
    engine = ClippingEngine(nn.Linear(15, 5), clip_norm=1.0, workers=1)
    engine.clipped_sum(torch.randn(250, 15), torch.zeros(250, dtype=torch.int64), torch.ones(250))
    assert engine._fused._footprint == Footprint(captured=20, kept=980)
    assert sizes[-3:] == [83, 83, 84]
