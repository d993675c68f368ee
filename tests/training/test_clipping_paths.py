"""Which way gradients are computed: fused, per sample and saying so, or refused; right in every case but the last."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from jsam.errors import InputError
from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn
from torch.nn import functional

from jsam.training.clipping import ClippingEngine, SlowPathWarning, cross_entropy
from jsam.training.clipping.capture import Capture
from jsam.training.clipping.clipped_sum import SAFETY_MARGIN
from jsam.training.clipping.engine import Path
from jsam.training.clipping.layers import CannotFuseError
from jsam.training.clipping.rowwise import is_rowwise
from tests.oracles.clipping import ClientBatch, reference_clipped_sum


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Small models lose more by waiting for a second thread than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


def data(*shape: int, n: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, *shape), torch.randint(0, 3, (n,))


def check(model: nn.Module, inputs: Tensor, targets: Tensor, path: Path, reason: str | None = None) -> ClippingEngine:
    """The engine takes `path`, says why if it is slow, and gets the sum right with half of the examples clipped."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SlowPathWarning)
        engine = ClippingEngine(model, clip_norm=1.0)
        engine.clip_norm = float(engine.clipped_sum(inputs, targets, torch.ones(len(inputs))).norms.median())
        result = engine.clipped_sum(inputs, targets, torch.full((len(inputs),), 1 / len(inputs)))
    assert engine.path == path
    assert len([w for w in caught if w.category is SlowPathWarning]) == (path != "fused"), "announced exactly once"
    if reason is not None:
        assert engine.reason is not None
        assert reason in engine.reason
    # The engine aims below C on purpose.
    aim = engine.clip_norm * (1 - SAFETY_MARGIN)
    expected = reference_clipped_sum(model, [ClientBatch(inputs, targets)], clip_norm=aim, per_round=1)
    assert float((result.gradient - expected).norm() / expected.norm()) < 1e-5
    return engine


class Twice(nn.Module):
    """Calls the same layers twice, so an example's gradient is the sum over both calls."""

    def __init__(self, layer: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, head

    def forward(self, x: Tensor) -> Tensor:
        once = torch.tanh(self.layer(x))
        scores: Tensor = self.head(torch.tanh(self.layer(once) + once).flatten(1))
        return scores


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 5), (5,)),
        (nn.Linear(5, 5), (4, 5)),
        (nn.Linear(40, 40), (40,)),
        (nn.Conv2d(2, 2, 3, padding=1), (2, 5, 5)),
        (nn.Conv2d(8, 8, 3, padding=1), (8, 5, 5)),
        (nn.GroupNorm(2, 4), (4, 3)),
        (nn.LayerNorm(5), (2, 5)),
    ],
    ids=lambda value: repr(value) if isinstance(value, nn.Module) else "x".join(map(str, value)),
)
def test_a_module_called_twice_is_fused_and_right(layer: nn.Module, shape: tuple[int, ...]) -> None:
    inputs, targets = data(*shape)
    check(Twice(layer, nn.Linear(inputs[0].numel(), 3)), inputs, targets, "fused")


def test_an_embedding_called_twice_is_fused_and_right() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(3, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            left, right = self.embedding(tokens[:, 0]), self.embedding(tokens[:, 1:])
            scores: Tensor = self.head(torch.tanh(left + right.sum(dim=1)))
            return scores

    check(Pair(), torch.randint(0, 4, (6, 5)), torch.randint(0, 3, (6,)), "fused")


def test_a_module_called_once_on_a_part_and_one_never_called_are_right() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.dead_end = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.dead_end(x)
            scores: Tensor = self.used(x)
            return scores

    inputs, targets = data(4)
    engine = check(Partial(), inputs, targets, "fused")
    pieces = engine.unflatten(engine.clipped_sum(inputs, targets, torch.ones(6)).gradient)
    assert not pieces["unused.weight"].any()
    assert not pieces["dead_end.weight"].any()
    assert pieces["used.weight"].any()


def test_in_place_activations_do_not_disturb_the_book_keeping() -> None:
    model = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ELU(inplace=True), nn.Linear(8, 3)
    )
    check(model, *data(6), "fused")


def test_an_input_changed_in_place_after_use_is_not_fused() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = x * 2.0
            out = self.first(hidden)
            hidden.mul_(0.0)
            scores: Tensor = self.second(out + hidden)
            return scores

    model = Careless()
    inputs, targets = data(4)
    names: dict[nn.Module, str] = {model.first: "first", model.second: "second"}
    with (
        Capture(model, names, cross_entropy) as capture,
        pytest.raises(CannotFuseError, match="the input of first is changed in place after use"),
    ):
        capture.run(inputs, targets)


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), nn.SyncBatchNorm(4), nn.LazyBatchNorm1d()],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_batch_norm_is_refused_with_the_reason(module: nn.Module) -> None:
    with pytest.raises(InputError, match=r"BatchNorm\w* at 1 mixes the samples of a batch.*use GroupNorm"):
        ClippingEngine(nn.Sequential(nn.Linear(4, 4), module, nn.Linear(4, 3)), clip_norm=1.0)


def test_batch_norm_switched_back_to_training_is_refused_at_the_next_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    inputs, targets = data(4)
    engine = check(model, inputs, targets, "vectorised", "BatchNorm1d at 1 has parameters and no rule")
    model.train()
    with pytest.raises(InputError, match="mixes the samples"):
        engine.clipped_sum(inputs, targets, torch.ones(6))


def test_other_modules_that_use_the_whole_batch_are_refused() -> None:
    with pytest.raises(InputError, match="InstanceNorm1d at 0 keeps statistics of other samples"):
        ClippingEngine(nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 3)), clip_norm=1.0)
    with pytest.raises(InputError, match="Embedding at 0 scales gradients by counts over the batch"):
        ClippingEngine(nn.Sequential(nn.Embedding(4, 3, scale_grad_by_freq=True)), clip_norm=1.0)


def test_samples_mixed_by_hand_are_found_on_the_first_batch() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(x - x.mean(dim=0))
            return scores

    with pytest.raises(InputError, match="the model mixes samples"):
        ClippingEngine(Centred(), clip_norm=1.0).clipped_sum(*data(4), torch.ones(6))


class Scaled(nn.Module):
    """Owns a bare parameter, which no rule covers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x * self.scale)
        return scores


class Borrowing(nn.Module):
    """Uses a layer's weight behind the layer's back; its type looks harmless."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(functional.linear(self.first(x), self.first.weight)))
        return scores


class Tied(nn.Module):
    """Two modules, one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.outward.weight = self.inward.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.outward(torch.tanh(self.inward(x)))))
        return scores


class Flattened(nn.Module):
    """Moves the sequence into the batch dimension before a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.mix(x.view(-1, 2))).view(-1, 4))
        return scores


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (Scaled(), (4,), "Scaled at the model itself has parameters and no rule"),
        (Borrowing(), (4,), "a parameter is used outside the module that owns it"),
        (Tied(), (4,), "outward.weight is also the parameter inward.weight"),
        (Flattened(), (4,), "mix sees inputs of shape"),
        (nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 3)), (2, 4), "Conv1d at 0"),
        (nn.Sequential(nn.Linear(4, 3), nn.PReLU()), (4,), "PReLU at 1"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))), (4,), "has parameters and no rule"),
    ],
    ids=["bare parameter", "borrowed", "tied", "flattened", "Conv1d", "PReLU", "parametrised"],
)
def test_what_the_rules_do_not_cover_is_computed_per_sample_and_announced(
    model: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    check(model, *data(*shape), "vectorised", reason)


def test_control_flow_on_values_is_computed_one_by_one() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            signs = [1.0 if float(row.detach().sum()) > 0 else -1.0 for row in x]
            scores: Tensor = self.head(x * self.scale * torch.tensor(signs).view(-1, 1))
            return scores

    check(Branching(), *data(4), "one by one", "torch.func")


def test_a_model_that_keeps_state_on_itself_is_right_because_it_runs_in_one_thread() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.hidden = torch.tanh(self.first(x))
            scores: Tensor = self.head(self.hidden)
            return scores

    torch.set_num_threads(2)
    assert is_rowwise(nn.Sequential(nn.Linear(4, 3)), 2)
    assert not is_rowwise(Remembering(), 2)
    check(Remembering(), *data(4, n=200), "fused")


def test_dropout_stays_fused_and_its_masks_follow_the_generator() -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3))
    inputs, targets = data(6, n=100)
    engine = ClippingEngine(model, clip_norm=1.0, workers=2)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(engine.clipped_sum(inputs, targets, torch.ones(100)).gradient)
    assert engine.path == "fused"
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    model.eval()
    check(model, inputs, targets, "fused")


def test_a_users_model_with_a_loss_of_its_own() -> None:
    """Regression on sequences: two branches, a sum of squares as loss."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.left = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6))
            self.right = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv2d(1, 6, (2, 2)), nn.Flatten(2))
            self.head = nn.Linear(6, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            embedded = self.embedding(tokens)
            outputs: Tensor = self.head(self.left(embedded).mean(dim=1) + self.right(embedded).mean(dim=2))
            return outputs

    def squares(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(dim=1)

    model, tokens, targets = Branches(), torch.randint(0, 7, (8, 5)), torch.randn(8, 2)
    engine = ClippingEngine(model, clip_norm=3.0, loss=squares, chunk_size=3)
    result = engine.clipped_sum(tokens, targets, torch.full((8,), 1 / 8))
    aim = 3.0 * (1 - SAFETY_MARGIN)
    expected = reference_clipped_sum(model, [ClientBatch(tokens, targets)], clip_norm=aim, per_round=1, loss=squares)
    assert engine.path == "fused"
    assert 0 < result.share_clipped < 1
    assert float((result.gradient - expected).norm() / expected.norm()) < 1e-5


def test_a_loss_that_averages_over_the_batch_is_refused() -> None:
    engine = ClippingEngine(nn.Linear(4, 3), clip_norm=1.0, loss=functional.cross_entropy)
    with pytest.raises(InputError, match=r"loss returned shape \(\) for 1 example;.*one value an example"):
        engine.clipped_sum(*data(4), torch.ones(6))


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf")])
def test_clip_norms_that_bound_nothing_are_refused(clip_norm: float) -> None:
    with pytest.raises(InputError, match=f"clip_norm is {clip_norm}; it must be a positive finite number"):
        ClippingEngine(nn.Linear(4, 3), clip_norm=clip_norm)


def test_bad_batches_are_refused_by_name() -> None:
    engine = ClippingEngine(nn.Linear(4, 3), clip_norm=1.0)
    inputs, targets = data(4)
    with pytest.raises(InputError, match="inputs has no examples"):
        engine.clipped_sum(inputs[:0], targets[:0], torch.ones(0))
    with pytest.raises(InputError, match=r"targets has shape \(5,\); its first dimension must be 6"):
        engine.clipped_sum(inputs, targets[:5], torch.ones(6))
    with pytest.raises(InputError, match=r"weights has shape \(6, 1\); it must be \(6,\)"):
        engine.clipped_sum(inputs, targets, torch.ones(6, 1))


def test_models_that_cannot_be_clipped_are_refused() -> None:
    with pytest.raises(InputError, match="no trainable parameter"):
        ClippingEngine(nn.Linear(4, 3).requires_grad_(False), clip_norm=1.0)
    with pytest.raises(InputError, match=r"parameter weight is torch.bfloat16; norms need float32 or float64"):
        ClippingEngine(nn.Linear(4, 3).bfloat16(), clip_norm=1.0)
    with pytest.raises(InputError, match="chunk_size is 0"):
        ClippingEngine(nn.Linear(4, 3), clip_norm=1.0, chunk_size=0)
    with pytest.raises(InputError, match="workers is 0"):
        ClippingEngine(nn.Linear(4, 3), clip_norm=1.0, workers=0)
