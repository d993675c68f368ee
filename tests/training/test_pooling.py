"""ReLU and max-pool as one stage in kept memory: the same bits as torch's two modules, and nothing left over."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn

from jsam.training.clipping import ClientBatch, ClippedSum, ClippingEngine, fused, reference_clipped_sum
from jsam.training.clipping.pooling import PooledForward, pooled
from jsam.training.models import build_model

LAYOUTS = (torch.contiguous_format, torch.channels_last)
POOLS = (
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d(2),
    nn.MaxPool2d((3, 2), stride=(1, 2), padding=1),
    nn.MaxPool2d(2, dilation=2),
    nn.MaxPool2d(3, stride=2, ceil_mode=True),
)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


def maps(n: int, layout: torch.memory_format) -> Tensor:
    """Few different values, so that windows have ties, all-negative windows and zeros."""
    return torch.randint(-3, 3, (n, 5, 9, 8)).float().contiguous(memory_format=layout)


def out_and_gradient(forward: object, x: Tensor, seed: int = 1) -> tuple[Tensor, Tensor]:
    assert callable(forward)
    x = x.clone().requires_grad_()
    out = forward(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    return out.detach().clone(), torch.autograd.grad((out * weights).sum(), x)[0].clone()


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_the_same_bits_as_torchs_modules_call_after_call(pool: nn.MaxPool2d, layout: torch.memory_format) -> None:
    """Also where a call is smaller or larger than the one whose memory it writes over, and after NaN and infinities."""
    model = nn.Sequential(nn.ReLU(), pool)
    stage = pooled(model)
    assert stage is not None
    for n in (4, 3, 7):
        x = maps(n, layout)
        assert_same(out_and_gradient(stage, x), out_and_gradient(model, x))
        x[0, :, 2:5, 2:4] = torch.nan
        x[1, :, 1] = torch.inf
        x[2, :, 3] = -torch.inf
        assert_same(out_and_gradient(stage, x), out_and_gradient(model, x))


def test_what_goes_in_is_not_kept_until_the_way_back() -> None:
    stage = pooled(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    assert stage is not None
    inner = maps(2, torch.channels_last).requires_grad_() * 1.0
    gone = weakref.ref(inner)
    out = stage(inner)
    del inner
    assert gone() is None
    assert out.requires_grad


def test_memory_is_made_once() -> None:
    stage = pooled(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    assert stage is not None
    x = maps(4, torch.channels_last).requires_grad_()
    outs = [stage(x) for _ in range(3)]
    gradients = [torch.autograd.grad(outs[-1].sum(), x, retain_graph=True)[0] for _ in range(2)]
    assert len({out.data_ptr() for out in outs}) == 1
    assert len({gradient.data_ptr() for gradient in gradients}) == 1


def clipped(model: nn.Module, *, n: int, workers: int, chunk: int) -> ClippedSum:
    generator = torch.Generator().manual_seed(2)
    x, targets = torch.randn(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator)
    x[: n // 2, :, :14] = 0.0  # A constant background makes ties in every window.
    engine = ClippingEngine(model, clip_norm=0.7, workers=workers, chunk_size=chunk)
    engine.clipped_sum(x, targets, torch.ones(n))
    result = engine.clipped_sum(x, targets, torch.linspace(0.5, 1.5, n))
    assert engine.path == "fused"
    return result


@pytest.mark.parametrize("workers", [1, 2])
def test_clipped_sums_have_the_bits_they_have_without_stages(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several uneven chunks a worker: no chunk may change what another one has captured."""
    found = clipped(build_model("mnist", 1), n=75, workers=workers, chunk=16)
    monkeypatch.setattr(fused, "pooled", lambda model: None)
    expected = clipped(build_model("mnist", 1), n=75, workers=workers, chunk=16)
    assert expected.share_clipped > 0.0
    assert torch.equal(found.norms, expected.norms)
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.gradient, expected.gradient)


def test_the_papers_mnist_model_has_both_its_pools_as_stages() -> None:
    """Or its rounds would be slow again and nobody would notice."""
    stages = pooled(build_model("mnist", 0))
    assert stages is not None
    assert sum(not isinstance(part, nn.Module) for part in stages.parts) == 2


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0)


class _OwnPool(nn.MaxPool2d):
    pass


def chain(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), *last, nn.Flatten(), nn.Linear(27, 3))


@pytest.mark.parametrize(
    "model",
    [
        chain(nn.Identity(), nn.ReLU(inplace=True)),
        chain(nn.Dropout(0.0, inplace=True)),
        chain(_Doubled()),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), _OwnPool(2), nn.Flatten(), nn.Linear(27, 3)),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)),
    ],
    ids=["in place further on", "dropout in place", "a module of one's own", "a pool of one's own", "no ReLU"],
)
def test_models_that_might_overwrite_a_stage_have_none(model: nn.Sequential) -> None:
    """They are clipped all the same, by torch's own modules."""
    assert pooled(model) is None
    _assert_right(model)


def test_a_relu_in_place_before_the_pool_is_part_of_the_stage() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3))
    assert isinstance(pooled(model), PooledForward)
    _assert_right(model)


def test_who_listens_to_a_module_is_heard() -> None:
    model, heard = chain(), []
    model[2].register_forward_hook(lambda module, args, out: heard.append(out.shape))
    assert pooled(model) is None
    _assert_right(model)
    assert heard


def _assert_right(model: nn.Sequential) -> None:
    x, targets = torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))
    engine = ClippingEngine(model, clip_norm=0.5)
    found = engine.clipped_sum(x, targets, torch.full((6,), 1 / 6)).gradient
    assert engine.path == "fused"
    expected = reference_clipped_sum(model, [ClientBatch(x, targets)], clip_norm=0.5, per_round=1)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
