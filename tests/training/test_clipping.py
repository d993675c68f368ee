"""Fused clipping against three independent computations of the same sum, and against its promise: the norm bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from jsam.errors import InputError
from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn

from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.clipped_sum import SAFETY_MARGIN
from jsam.training.models import build_model
from tests.oracles.clipping import ClientBatch, reference_clipped_sum

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}
SIZES, DRAWS, PER_ROUND = (7, 1, 12), (2, 1, 3), 6


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Small models lose more by waiting for a second thread than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(name: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, *SHAPES[name], generator=generator)
    return images, torch.randint(0, 10, (n,), generator=generator)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def gradients_one_by_one(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    found = []
    for image, label in zip(images, labels, strict=True):
        pieces = torch.autograd.grad(cross_entropy(model(image[None]), label[None]).sum(), list(model.parameters()))
        found.append(torch.cat([piece.reshape(-1) for piece in pieces]))
    return torch.stack(found)


def opacus_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    opacus = require("opacus.grad_sample", extra="dev")
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum")
    torch.autograd.backward(cross_entropy(wrapped(images), labels).sum())
    found = torch.cat([getattr(p, "grad_sample").flatten(1) for p in model.parameters()], dim=1)  # noqa: B009
    wrapped.to_standard_module()
    return found.detach()


def clip(gradients: Tensor, clip_norm: float) -> Tensor:
    norms = torch.linalg.vector_norm(gradients.double(), dim=1, keepdim=True)
    return gradients.double() * torch.clamp(clip_norm / norms, max=1.0)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "digits"])
@pytest.mark.filterwarnings("ignore:::opacus", "ignore:Full backward hook")
def test_fused_reference_opacus_and_one_by_one_agree_for_clients_of_different_sizes(name: str) -> None:
    model = build_model(name, seed=3)
    images, labels = batch(name, sum(SIZES))
    weights = sample_weights(SIZES, DRAWS, PER_ROUND)
    alone = gradients_one_by_one(model, images, labels)
    clip_norm = float(alone.norm(dim=1).median())
    by_opacus = opacus_gradients(model, images, labels)
    clients = [
        ClientBatch(x, y, m)
        for x, y, m in zip(torch.split(images, list(SIZES)), torch.split(labels, list(SIZES)), DRAWS, strict=True)
    ]
    # The engine aims below C on purpose.
    aim = clip_norm * (1 - SAFETY_MARGIN)
    reference = reference_clipped_sum(model, clients, clip_norm=aim, per_round=PER_ROUND)

    result = ClippingEngine(model, clip_norm=clip_norm).clipped_sum(images, labels, weights)

    assert result.share_clipped == pytest.approx(0.5, abs=0.1)
    assert distance(result.gradient, reference) < 1e-5
    assert distance(result.gradient, weights.double() @ clip(alone, aim)) < 1e-5
    assert distance(result.gradient, weights.double() @ clip(by_opacus, aim)) < 1e-5
    assert distance(result.norms, alone.norm(dim=1)) < 1e-5
    assert distance(result.losses, cross_entropy(model(images), labels).detach()) < 1e-5


@pytest.mark.parametrize("name", ["mnist", "digits"])
@pytest.mark.parametrize("clip_norm", [1e-3, 0.7, 4.0, 1e6])
def test_no_example_contributes_more_than_the_clip_norm(name: str, clip_norm: float) -> None:
    """With weight on one example only, the sum is that example's contribution, and its norm is measured in fp64."""
    engine = ClippingEngine(build_model(name, seed=1), clip_norm=clip_norm)
    images, labels = batch(name, 24, seed=2)
    scale = torch.logspace(-3, 3, 24).view(-1, 1, 1, 1)
    for i in range(24):
        weights = torch.zeros(24)
        weights[i] = 1.0
        result = engine.clipped_sum(images * scale, labels, weights)
        realised = float(result.gradient.double().norm())
        assert realised <= clip_norm * (1 + 1e-6)
        assert realised >= min(clip_norm * (1 - SAFETY_MARGIN), float(result.norms[i])) * (1 - 1e-5)


@pytest.mark.parametrize("chunk_size", [1, 3, 8, 20, 1000])
def test_the_chunk_size_changes_nothing_but_rounding(chunk_size: int) -> None:
    model = build_model("mnist", seed=0)
    images, labels = batch("mnist", 20)
    weights = torch.linspace(0.1, 1.0, 20)
    auto = ClippingEngine(model, clip_norm=2.0).clipped_sum(images, labels, weights)
    chunked = ClippingEngine(model, clip_norm=2.0, chunk_size=chunk_size).clipped_sum(images, labels, weights)
    assert distance(chunked.gradient, auto.gradient) < 1e-5
    assert distance(chunked.norms, auto.norms) < 1e-5


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_same_call_twice_is_bit_identical(workers: int) -> None:
    images, labels = batch("mnist", 90)
    weights = torch.full((90,), 0.02)
    results = []
    for _ in range(4):
        engine = ClippingEngine(build_model("mnist", seed=0), clip_norm=2.0, chunk_size=24, workers=workers)
        results.append(engine.clipped_sum(images, labels, weights))
    for other in results[1:]:
        assert torch.equal(results[0].gradient, other.gradient)
        assert torch.equal(results[0].norms, other.norms)


@pytest.mark.parametrize("n", [1, 15, 33, 64])
def test_the_number_of_workers_changes_nothing_but_rounding(n: int) -> None:
    model = build_model("mnist", seed=0)
    images, labels = batch("mnist", n)
    weights = torch.linspace(0.1, 1.0, n)
    results = [
        ClippingEngine(model, clip_norm=2.0, workers=workers, chunk_size=chunk).clipped_sum(images, labels, weights)
        for workers, chunk in ((1, n), (2, n), (3, 10), (4, 1))
    ]
    for other in results[1:]:
        assert distance(other.gradient, results[0].gradient) < 1e-5
        assert distance(other.norms, results[0].norms) < 1e-5
        assert distance(other.losses, results[0].losses) < 1e-5


def test_workers_give_torchs_threads_back_and_pass_errors_on() -> None:
    broken_down: list[str] = []

    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        if broken_down:
            raise ArithmeticError("no loss today")
        return cross_entropy(outputs, targets)

    images, labels = batch("digits", 60)
    torch.set_num_threads(2)
    engine = ClippingEngine(build_model("digits", seed=0), clip_norm=1.0, loss=broken, workers=2, chunk_size=60)
    engine.clipped_sum(images, labels, torch.ones(60))
    broken_down.append("now")
    with pytest.raises(ArithmeticError, match="no loss today"):
        engine.clipped_sum(images, labels, torch.ones(60))
    broken_down.clear()
    assert torch.get_num_threads() == 2
    after = engine.clipped_sum(images[:36], labels[:36], torch.ones(36))
    fresh = ClippingEngine(build_model("digits", seed=0), clip_norm=1.0).clipped_sum(
        images[:36], labels[:36], torch.ones(36)
    )
    assert distance(after.gradient, fresh.gradient) < 1e-6
    assert torch.get_num_threads() == 2


def test_a_client_drawn_twice_counts_twice_and_is_computed_once() -> None:
    model = build_model("digits", seed=0)
    images, labels = batch("digits", 9)
    engine = ClippingEngine(model, clip_norm=1.0)
    once = engine.clipped_sum(images, labels, sample_weights((4, 5), (2, 1), 3))
    twice = engine.clipped_sum(
        torch.cat([images[:4], images]), torch.cat([labels[:4], labels]), sample_weights((4, 4, 5), (1, 1, 1), 3)
    )
    assert distance(once.gradient, twice.gradient) < 1e-6


def test_the_first_batch_check_leaves_generator_and_gradients_alone() -> None:
    model = build_model("digits", seed=0)
    images, labels = batch("digits", 5)
    before = torch.get_rng_state()
    ClippingEngine(model, clip_norm=1.0).clipped_sum(images, labels, torch.ones(5))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_unflatten_gives_each_parameter_its_own_gradient() -> None:
    model = build_model("digits", seed=0)
    images, labels = batch("digits", 6)
    engine = ClippingEngine(model, clip_norm=1e6)
    pieces = engine.unflatten(engine.clipped_sum(images, labels, torch.ones(6)).gradient)
    torch.autograd.backward(cross_entropy(model(images), labels).sum())
    assert list(pieces) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(pieces[name].float(), parameter.grad, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(
    ("sizes", "draws", "per_round"), [((600,) * 10, (1,) * 10, 10), ((1, 7, 539), (2, 1, 1), 4), ((3,), (1,), 7)]
)
def test_weights_of_a_client_sum_to_its_share_of_the_round_and_never_above(
    sizes: Sequence[int], draws: Sequence[int], per_round: int
) -> None:
    weights = sample_weights(sizes, draws, per_round)
    for piece, m in zip(torch.split(weights, list(sizes)), draws, strict=True):
        share = float(piece.double().sum())
        assert m / per_round * (1 - 1e-6) <= share <= m / per_round


@pytest.mark.parametrize(
    ("sizes", "draws", "per_round", "message"),
    [
        ((), (), 1, "sizes is empty"),
        ((3,), (1, 1), 2, "differ in length: 1 and 2"),
        ((3, 0), (1, 1), 2, "sizes has 0"),
        ((3, 2), (1, 0), 2, "multiplicities has 0"),
        ((3, 2), (2, 1), 2, "per_round is 2, below the 3 draws"),
    ],
)
def test_bad_rounds_are_refused(sizes: Sequence[int], draws: Sequence[int], per_round: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_weights(sizes, draws, per_round)
