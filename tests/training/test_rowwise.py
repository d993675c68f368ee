"""Modules that are taken to treat the rows of a batch apart do so, at the ranks at which they are taken to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn
from torch.nn import functional

from jsam.training.clipping import ClippingEngine, SlowPathWarning
from jsam.training.clipping.engine import Path
from jsam.training.clipping.rowwise import RANKS, chain_of, is_rowwise, rank_after
from tests.oracles.clipping import ClientBatch, reference_clipped_sum

ROWS = 5
WITH_ARGUMENTS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Threshold(0.1, 0.0), (6,)),
    (nn.RReLU().eval(), (6,)),
    (nn.Linear(6, 3), (6,)),
    (nn.Linear(6, 3), (4, 6)),
    (nn.Conv1d(3, 4, 2), (3, 6)),
    (nn.Conv2d(3, 4, 2, padding=1, padding_mode="circular"), (3, 6, 6)),
    (nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
    (nn.Dropout1d(), (3, 6)),
    (nn.Dropout2d(), (3, 6, 6)),
    (nn.Dropout3d(), (3, 4, 4, 4)),
    (nn.MaxPool1d(2), (3, 6)),
    (nn.MaxPool2d(2, stride=1), (3, 6, 6)),
    (nn.MaxPool3d(2), (3, 4, 4, 4)),
    (nn.AvgPool1d(2), (3, 6)),
    (nn.AvgPool2d(2), (3, 6, 6)),
    (nn.AvgPool3d(2), (3, 4, 4, 4)),
    (nn.AdaptiveAvgPool1d(2), (3, 6)),
    (nn.AdaptiveAvgPool2d(2), (3, 6, 6)),
    (nn.AdaptiveMaxPool1d(2), (3, 6)),
    (nn.AdaptiveMaxPool2d(2), (3, 6, 6)),
    (nn.ZeroPad2d((1, 2, -1, 1)), (3, 6, 6)),
    (nn.ReflectionPad2d(1), (3, 6, 6)),
    (nn.ReplicationPad2d(1), (3, 6, 6)),
    (nn.GroupNorm(2, 4), (4,)),
    (nn.GroupNorm(2, 4), (4, 6)),
    (nn.LayerNorm(6), (6,)),
    (nn.LayerNorm((4, 6)), (4, 6)),
    (nn.BatchNorm1d(6).eval(), (6,)),
    (nn.BatchNorm1d(4).eval(), (4, 6)),
    (nn.BatchNorm2d(3).eval(), (3, 6, 6)),
    (nn.BatchNorm3d(3).eval(), (3, 4, 4, 4)),
    (nn.InstanceNorm1d(3), (3, 6)),
    (nn.InstanceNorm2d(3), (3, 6, 6)),
    (nn.InstanceNorm3d(3), (3, 4, 4, 4)),
    (nn.Flatten(), (3, 6, 6)),
    (nn.Flatten(2), (3, 6, 6)),
    (nn.Flatten(-2, -1), (3, 6, 6)),
    (nn.Unflatten(1, (2, 3)), (6,)),
    (nn.Unflatten(-1, (2, 3)), (4, 6)),
    (nn.Softmax(dim=1), (6,)),
    (nn.LogSoftmax(dim=-1), (4, 6)),
    (nn.GLU(), (6,)),
]
TAKEN = {type(module) for module, _ in WITH_ARGUMENTS}
CASES = [*WITH_ARGUMENTS, *((kind(), (4, 6)) for kind in RANKS if kind not in TAKEN and kind is not nn.Embedding)]


@pytest.mark.parametrize(("module", "shape"), CASES, ids=lambda value: str(value).replace("\n", ""))
def test_one_row_of_a_known_module_changes_no_other_row(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Bit for bit, with values that are not numbers in the changed row; random layers draw the same."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, *shape, generator=source)
    other = inputs.clone()
    other[2] = torch.nan
    assert is_rowwise(module, inputs.dim())
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        first = module(inputs)
        torch.manual_seed(1)
        second = module(other)
    assert first.shape[0] == ROWS
    assert first.dim() == rank_after([module], inputs.dim())
    rest = torch.arange(ROWS) != 2
    assert torch.equal(first[rest], second[rest])


def test_an_embedding_gives_each_row_its_own_vectors() -> None:
    module = nn.Embedding(7, 3)
    assert rank_after([module], 2) == module(torch.zeros(ROWS, 4, dtype=torch.int64)).dim()


@pytest.mark.parametrize(
    ("module", "rank"),
    [
        (nn.RReLU(), 2),
        (nn.Conv2d(3, 4, 2), 3),
        (nn.Conv1d(3, 4, 2), 2),
        (nn.ZeroPad2d((0, 0, 1, -1)), 2),
        (nn.LayerNorm((5, 6)), 2),
        (nn.LayerNorm(6), 1),
        (nn.BatchNorm1d(6), 2),
        (nn.BatchNorm1d(6, track_running_stats=False).eval(), 2),
        (nn.InstanceNorm1d(3, track_running_stats=True).eval(), 3),
        (nn.InstanceNorm1d(3), 2),
        (nn.Embedding(7, 3, max_norm=1.0), 2),
        (nn.Embedding(7, 3, scale_grad_by_freq=True), 2),
        (nn.Flatten(0), 3),
        (nn.Flatten(-3), 3),
        (nn.Unflatten(0, (5, 1)), 2),
        (nn.Unflatten(-2, (5, 1)), 2),
        (nn.Softmax(dim=0), 2),
        (nn.Softmax(dim=-2), 2),
        (nn.Softmax(), 2),
        (nn.GLU(dim=0), 2),
        (nn.MaxPool2d(2, return_indices=True), 4),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), 2),
        (nn.SyncBatchNorm(4).eval(), 2),
        (nn.MultiheadAttention(4, 2), 3),
        (nn.Sequential(nn.Flatten(), nn.Softmax(dim=-2)), 4),
        (nn.Sequential(nn.Linear(4, 4), nn.ModuleList()), 2),
    ],
    ids=lambda value: str(value).replace("\n", ""),
)
def test_what_may_mix_or_keep_something_is_not_known(module: nn.Module, rank: int) -> None:
    assert not is_rowwise(module, rank)


def test_a_hook_on_all_modules_makes_every_model_unknown() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: None)
    try:
        assert chain_of(nn.Linear(4, 3)) is None
    finally:
        handle.remove()
    assert chain_of(nn.Linear(4, 3)) is not None


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.stem(x))
        h = functional.relu(h + self.norm(self.conv(h)))
        scores: Tensor = self.head(functional.adaptive_avg_pool2d(h, 1).flatten(1))
        return scores


class Positions(nn.Module):
    """A table of positions is looked up by what comes from no example, as many positions as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(9, 6), nn.Embedding(ROWS, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.tokens(x) + self.places(torch.arange(x.shape[1])))
        scores: Tensor = self.head(h.mean(dim=1))
        return scores


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(x).mean(dim=1))
        return scores


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x)
        scores: Tensor = self.head(out[:, -1])
        return scores


def test_rrelu_draws_a_slope_for_each_number_and_none_twice() -> None:
    """Slopes lie in the range that was asked for, differ, and follow from the generator alone."""
    model = nn.Sequential(nn.Linear(6, 40), nn.RReLU(0.2, 0.4), nn.Linear(40, 3))
    inputs, targets = torch.randn(ROWS, 6), torch.zeros(ROWS, dtype=torch.int64)
    engine, found = ClippingEngine(model, clip_norm=1.0), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(engine.clipped_sum(inputs, targets, torch.ones(ROWS)).gradient)
    assert engine.path == "fused"
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


class Undisturbed(nn.Module):
    """A part without gradients: the same sums as without vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = torch.tanh(self.first(x)).mean(dim=1)
        scores: Tensor = self.last(fixed * self.first(x).mean(dim=1))
        return scores


@pytest.mark.parametrize(
    ("model", "shape", "path"),
    [
        (Residual(), (2, 6, 6), "fused"),
        (Undisturbed(), (4, 8), "fused"),
        (Positions(), (ROWS,), "vectorised"),
        (Attention(), (4, 8), "vectorised"),
        (Recurrent(), (4, 8), "vectorised"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ordinary_models_with_a_forward_of_their_own_give_the_right_sums(
    model: nn.Module, shape: tuple[int, ...], path: Path
) -> None:
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, *shape, generator=source)
    if isinstance(model, Positions):
        inputs = torch.randint(0, 9, (ROWS, *shape), generator=source)
    targets = torch.randint(0, 3, (ROWS,), generator=source)
    engine = ClippingEngine(model, clip_norm=0.5)
    found = engine.clipped_sum(inputs, targets, torch.ones(ROWS) / ROWS)
    expected = reference_clipped_sum(model, [ClientBatch(inputs, targets)], clip_norm=0.5, per_round=1)
    assert engine.path == path, engine.reason
    assert float((found.gradient - expected).norm() / expected.norm()) < 1e-4


def test_a_slow_path_is_announced_by_the_check_that_a_run_begins_with() -> None:
    engine = ClippingEngine(Positions(), clip_norm=0.5)
    with pytest.warns(SlowPathWarning, match="places sees inputs that do not come from an example"):
        engine.check(torch.randint(0, 9, (3, ROWS)), torch.zeros(3, dtype=torch.int64))
