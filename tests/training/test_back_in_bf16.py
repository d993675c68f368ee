"""Chains at bf16: the forward pass is tf32's, gradients are bf16 from the last activation back to the first layer.

The kernels are stand-ins, so that all this runs without a GPU; the real ones are tested in test_cuda.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require

torch = require("torch", extra="train")

from torch import Tensor, nn  # noqa: E402

from jsam.training.clipping import ClippingEngine  # noqa: E402
from jsam.training.clipping.capture import Capture  # noqa: E402
from jsam.training.clipping.gpu import forward  # noqa: E402
from jsam.training.clipping.layers import Call  # noqa: E402
from jsam.training.clipping.precision import Precision  # noqa: E402
from jsam.training.models import build_model  # noqa: E402
from tests.oracles.clipping import ClientBatch, reference_clipped_sum  # noqa: E402
from tests.training.plain_kernels import plain_kernels  # noqa: E402


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with plain_kernels():
        yield


def uneven() -> nn.Sequential:
    """Strides that leave a rest, groups, dilation, few channels, padding of another kind, a frozen layer."""
    frozen = nn.Conv2d(6, 5, 2).requires_grad_(False)
    return nn.Sequential(
        nn.Conv2d(3, 16, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(1, 0)),
        nn.Tanh(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 18, 3, stride=(3, 2), padding=1, groups=2),
        nn.ReLU(),
        nn.Conv2d(18, 8, 2, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding="same"),
        nn.Tanh(),
        frozen,
        nn.ReLU(),
        nn.Conv2d(5, 7, 1),
        nn.GroupNorm(7, 7),
        nn.ReLU(),
        nn.Conv2d(7, 4, 1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 2 * 6, 10),
    )


def a_case(name: str, count: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    model: nn.Module = uneven() if name == "uneven" else build_model(name, 3)
    shape = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "uneven": (3, 50, 50)}[name]
    patterns, targets = torch.randn(10, *shape), torch.randint(0, 10, (count,))
    inputs = patterns[targets] + 0.5 * torch.randn(count, *shape)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, inputs.contiguous(memory_format=torch.channels_last), targets


def capture(name: str, precision: Precision) -> tuple[Tensor, dict[str, list[Call]]]:
    model, inputs, targets = a_case(name)
    engine = ClippingEngine(model, clip_norm=1.0, workers=1)
    run = Capture(model, engine._fused._names, engine.loss, forward.merged(model, precision))
    with run:
        return run.run(inputs, targets)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "uneven"])
def test_the_forward_pass_is_that_of_tf32_to_the_bit(name: str) -> None:
    assert torch.equal(capture(name, "bf16")[0], capture(name, "tf32")[0])


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_convolutions_are_handed_bf16_gradients_and_linear_layers_fp32_ones(name: str) -> None:
    model = a_case(name)[0]
    for precision in ("tf32", "bf16"):
        _, calls = capture(name, precision)
        for i, (key, (call,)) in enumerate(sorted(calls.items(), key=lambda item: int(item[0]))):
            low = precision == "bf16" and isinstance(model.get_submodule(key), nn.Conv2d)
            assert call.grad_outputs.dtype == (torch.bfloat16 if low else torch.float32)
            assert call.inputs.dtype == (torch.bfloat16 if low and i > 0 else torch.float32)


def test_inputs_of_per_example_gradients_are_the_forward_pass_rounded() -> None:
    exact, rounded = capture("cifar10", "tf32")[1], capture("cifar10", "bf16")[1]
    assert torch.equal(exact["7"][0].inputs.bfloat16(), rounded["7"][0].inputs)


def test_no_module_of_another_kind_sees_anything_but_fp32() -> None:
    _, calls = capture("uneven", "bf16")
    # A convolution that pads in its own way, one before a GroupNorm, and the GroupNorm itself.
    for key in ("7", "11", "12", "17"):
        assert calls[key][0].inputs.dtype == calls[key][0].grad_outputs.dtype == torch.float32
    assert "9" not in calls


def distance(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    expected = reference_clipped_sum(model, [ClientBatch(inputs=inputs, targets=targets)], clip_norm=0.5, per_round=1)
    engine = ClippingEngine(model, clip_norm=0.5, workers=1)
    engine._fused._forward, engine.precision = forward.merged(model, "bf16"), "bf16"
    found = engine.clipped_sum(inputs, targets, torch.full((len(inputs),), 1 / len(inputs)))
    assert engine.path == "fused"
    return float((found.gradient - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", ["mnist", "cifar10", "uneven"])
def test_a_round_agrees_with_the_reference_path(name: str) -> None:
    """The forward pass is fp32 here, so the distance is what the way back adds; bf16 shows, above 1e-4."""
    assert 1e-4 < distance(*a_case(name)) < 1e-2


@pytest.mark.parametrize("most", [1_100, 10_000, 15_000])
def test_layers_too_large_for_the_kernels_numbering_go_apart(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, one or none of three: what a stage hands on then becomes an ordinary tensor, and back."""
    torch.manual_seed(4)
    small, large, last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 40, 3, padding=1), nn.Conv2d(40, 8, 3)
    model = nn.Sequential(small, nn.Tanh(), large, nn.ReLU(), last, nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 10))
    monkeypatch.setattr(forward, "_MOST_ELEMENTS", most)
    assert 1e-4 < distance(model, torch.randn(8, 3, 6, 6), torch.arange(8)) < 5e-3


def test_stand_ins_take_no_memory() -> None:
    from jsam.training.clipping.gpu.bf16 import Carried, activate_and_carry, convolve

    x, layer = torch.randn(4, 3, 8, 8), nn.Conv2d(3, 5, 3)
    y, stand_in = convolve(x, layer, ours=False)
    carried = activate_and_carry(y, stand_in, layer.bias, tanh=True, kernel=2, stride=2)
    assert isinstance(carried, Carried)
    for values, standing in ((y, stand_in), (carried.values, carried.stand_in)):
        assert values.dtype == torch.float32
        assert not values.requires_grad
        assert standing.requires_grad
        assert standing.shape == values.shape
        assert standing.untyped_storage().nbytes() == 2
