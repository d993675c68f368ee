"""What a forward pass writes into a model is without noise: it must reach no stored model, round or other sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn
from torch.nn import functional

from jsam.errors import InputError
from jsam.training import train
from jsam.training.clipping import ClippingEngine
from tests.training.small import small_contract, small_settings, small_task

pytestmark = [
    pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning"),
]
FEATURES = 4


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.mean: Tensor

    def note(self, h: Tensor) -> None:
        """What is written on the way."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        self.note(h)
        scores: Tensor = self.last(h - self.mean)
        return scores


class RunningMean(Base):
    def note(self, h: Tensor) -> None:
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * h.detach().mean(dim=0))


class ReplacedBuffer(Base):
    def note(self, h: Tensor) -> None:
        self.mean = 0.5 * h.detach().mean(dim=0)


class Counting(Base):
    def note(self, h: Tensor) -> None:
        self.mean.add_(1.0)


class BatchNormInside(Base):
    """The layer itself is in evaluation mode; what is called is the function, with the layer's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.norm.eval()

    def train(self, mode: bool = True) -> BatchNormInside:
        super().train(mode)
        self.norm.eval()
        return self

    def note(self, h: Tensor) -> None:
        functional.batch_norm(h.repeat(2, 1), self.norm.running_mean, self.norm.running_var, training=True)


class WritesItsWeights(Base):
    def note(self, h: Tensor) -> None:
        with torch.no_grad():
            self.last.bias.add_(0.1 * h.detach().sum())


class WritesForRareSamples(Base):
    """No look at a few samples finds it."""

    def note(self, h: Tensor) -> None:
        if bool((h.detach().sum(dim=1) > 7.0).any()):
            self.mean.fill_(1.0)


def spectral() -> nn.Module:
    model = Base()
    nn.utils.parametrizations.spectral_norm(model.last)
    return model


CHANGING: dict[str, Callable[[], nn.Module]] = {
    "running mean": RunningMean,
    "buffer replaced": ReplacedBuffer,
    "counter": Counting,
    "functional batch_norm": BatchNormInside,
    "weights written": WritesItsWeights,
    "spectral norm": spectral,
    "BatchNorm": lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "InstanceNorm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(4, 3)
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_model_whose_state_changes_in_a_forward_pass_is_not_trained_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    task = small_task(model=CHANGING[name]())
    words = "changes in a forward pass|mixes the samples|keeps statistics of other samples"
    with pytest.raises(InputError, match=words) as refusal:
        train(small_contract(), task, small_settings(), tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


class Tokens(nn.Module):
    def __init__(self, *, bag: bool) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.embedding, self.head = kind(30, 8, max_norm=1.0), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.embedding(tokens)
        scores: Tensor = self.head(found.mean(dim=1) if found.dim() == 3 else found)
        return scores


@pytest.mark.parametrize("bag", [False, True])
def test_an_embedding_that_rescales_the_rows_it_is_asked_for_is_refused_by_name(bag: bool) -> None:
    """Rows of tokens that nobody uses would keep their length: the model would list the tokens of all samples."""
    with pytest.raises(InputError, match=r"Embedding\w* at embedding rescales the rows that samples use \(max_norm\)"):
        ClippingEngine(Tokens(bag=bag), clip_norm=1.0)


def test_the_same_by_the_function_is_refused_too() -> None:
    class Sneaky(Tokens):
        def __init__(self) -> None:
            super().__init__(bag=False)
            self.embedding.max_norm = None

        def forward(self, tokens: Tensor) -> Tensor:
            scores: Tensor = self.head(functional.embedding(tokens, self.embedding.weight, max_norm=0.5).mean(dim=1))
            return scores

    engine = ClippingEngine(Sneaky(), clip_norm=1.0)
    with pytest.raises(InputError, match=r"parameter embedding\.weight of Embedding changes in a forward pass"):
        engine.clipped_sum(torch.randint(0, 30, (6, 4)), torch.zeros(6, dtype=torch.int64), torch.ones(6))


def test_what_no_look_finds_is_written_to_a_copy_and_never_stored(tmp_path: Path) -> None:
    """Some samples make the model write; model.pt, buffers and frozen weights are as before any sample was seen."""
    model = WritesForRareSamples()
    with torch.no_grad():
        model.first.weight.abs_()
    model.first.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = small_task(model=model)
    rare = task.dataset.train_inputs[3:]
    rare[:] = 100 * np.abs(rare)
    train(small_contract(), task, small_settings(rounds=2), tmp_path / "run")
    after = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert torch.equal(after["mean"], before["mean"])
    assert torch.equal(after["first.bias"], before["first.bias"])
    assert not torch.equal(after["last.weight"], before["last.weight"])
    model(torch.from_numpy(rare))
    assert model.mean.any(), "the samples make the model write when it runs itself, so the test shows something"


def test_an_attribute_that_a_forward_pass_sets_is_gone_with_the_copy() -> None:
    class WritesAnAttribute(Base):
        """Only python attributes, and each pass reads what it wrote itself: harmless, and left behind by no round."""

        def note(self, h: Tensor) -> None:
            self.last_seen = h

    model = WritesAnAttribute()
    engine = ClippingEngine(model, clip_norm=1.0)
    engine.clipped_sum(torch.randn(9, FEATURES), torch.zeros(9, dtype=torch.int64), torch.ones(9))
    assert engine.path == "fused"
    assert not hasattr(model, "last_seen")
