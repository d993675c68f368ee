"""A model that mixes samples is refused, or one sample moves the sum by no more than its own clipped gradient.

The noise that a client sells is for a sum in which a sample counts for at most C, and a replaced one for 2 C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn
from torch.nn import functional

from jsam.errors import InputError
from jsam.training.clipping import ClippingEngine, PerSampleLoss, cross_entropy
from jsam.training.clipping import capture as capture_module
from jsam.training.models import build_model
from tests.redteam.mixing_models import BATCH, CLASSES, FEATURES, MODELS, SEEN_BEFORE, GateShutAtFirst, LargeBatchesOnly

pytestmark = [
    pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
CLIP_NORM, PLACES, SCALES = 0.5, (0, 5), (1.0, 1000.0)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def two_rounds(make: Callable[[], nn.Module], inputs: Tensor, targets: Tensor, loss: PerSampleLoss) -> list[Tensor]:
    """The sums of two rounds on a new model, the second one after other weights came; or InputError.

    The first one in chunks: a state that a model keeps would go from one to the next.
    """
    torch.manual_seed(1)
    SEEN_BEFORE.clear()
    model = make().train()
    engine = ClippingEngine(model, clip_norm=CLIP_NORM, loss=loss, chunk_size=16, workers=1)
    torch.manual_seed(2)
    sums = [engine.clipped_sum(inputs, targets, torch.ones(len(inputs))).gradient]
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.3 * torch.randn_like(value))
    engine._chunk_size = BATCH
    torch.manual_seed(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sums.append(engine.clipped_sum(inputs, targets, torch.ones(len(inputs))).gradient)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items()), "a round wrote to the model"
    return sums


def largest_shift(make: Callable[[], nn.Module], loss: PerSampleLoss = cross_entropy) -> float:
    """By how many C one replaced sample moves the sum, the worst of several tried; InputError if refused."""
    source = torch.Generator().manual_seed(7)
    inputs = torch.randn(BATCH, FEATURES, generator=source)
    targets = torch.randint(0, CLASSES, (BATCH,), generator=source)
    base, worst = two_rounds(make, inputs, targets, loss), 0.0
    for place in PLACES:
        for scale in SCALES:
            other = inputs.clone()
            other[place] = scale * torch.randn(FEATURES, generator=source)
            found = two_rounds(make, other, targets, loss)
            worst = max(worst, *(float((a.double() - b.double()).norm()) for a, b in zip(base, found, strict=True)))
    return worst / CLIP_NORM


def batch_softmax_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses * torch.softmax(losses, dim=0) * len(losses)


def turning_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """In large batches only, so that a look at a small one shows nothing: one sample turns all gradients around."""
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses * outputs.detach()[0].sum().sign() if len(losses) > 8 else losses


def remembering_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    SEEN_BEFORE.append(outputs)
    return losses * (1.0 + SEEN_BEFORE[0].square().sum()) if len(SEEN_BEFORE) > 1 else losses


@pytest.mark.parametrize("name", MODELS)
def test_one_sample_moves_the_sum_by_twice_the_clip_norm_at_most_or_the_model_is_refused(name: str) -> None:
    try:
        shift = largest_shift(MODELS[name])
    except InputError:
        return
    assert 0 < shift <= 2 * (1 + 1e-5)


@pytest.mark.parametrize("loss", [batch_softmax_loss, turning_loss, remembering_loss])
def test_a_loss_that_mixes_samples_sees_one_at_a_time(loss: PerSampleLoss) -> None:
    for make in (build_small, LargeBatchesOnly):
        try:
            assert 0 < largest_shift(make, loss) <= 2 * (1 + 1e-5)
        except InputError:
            continue


def build_small() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


@pytest.mark.parametrize("make", [LargeBatchesOnly, GateShutAtFirst])
def test_the_attack_shows_what_happens_if_models_are_taken_for_known(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a batch to go through at once, these would pass every look at a first small batch, and the bound with it."""
    monkeypatch.setattr(capture_module, "chain_of", lambda model: [])
    assert largest_shift(make) > 4


def test_mixing_losses_show_if_a_loss_sees_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "each_loss", lambda loss, outputs, targets: loss(outputs, targets))
    assert largest_shift(build_small, turning_loss) > 4


@pytest.mark.parametrize("name", ["mnist", "cifar10", "digits"])
def test_our_own_models_go_through_as_whole_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are known, so that nothing runs sample by sample but the look at the first three."""

    def unexpected(*_: object) -> None:
        pytest.fail("a known model was run one sample at a time")

    monkeypatch.setattr(capture_module, "IsolatedModel", unexpected)
    monkeypatch.setattr(capture_module, "each_loss", unexpected)
    shape = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}[name]
    engine = ClippingEngine(build_model(name, 0), clip_norm=1.0)
    engine.clipped_sum(torch.randn(8, *shape), torch.zeros(8, dtype=torch.int64), torch.ones(8))
    assert engine.path == "fused"
