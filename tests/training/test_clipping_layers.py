"""Random small models of every fused layer type: fused clipping against gradients taken one example at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn

from jsam.training.clipping import ClippingEngine
from jsam.training.clipping.clipped_sum import SAFETY_MARGIN
from jsam.training.clipping.conv_patches import prepare, unfolder
from jsam.training.clipping.conv_shape import ConvShape
from jsam.training.clipping.workspace import Workspace
from tests.oracles.clipping import ClientBatch, reference_clipped_sum

EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def _one_torch_thread() -> Iterator[None]:
    """Small models lose more by waiting for a second thread than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(model: nn.Module, inputs: Tensor, *, classes: int, seed: int = 0) -> None:
    """Fused and reference sums agree with some examples clipped and some not, in fp64 and to 1e-5 in fp32."""
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        model.to(dtype)
        compare(model, inputs.to(dtype) if inputs.is_floating_point() else inputs, classes, seed, tolerance)


def compare(model: nn.Module, inputs: Tensor, classes: int, seed: int, tolerance: float) -> None:
    n = inputs.shape[0]
    targets = torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed))
    first = ClippingEngine(model, clip_norm=1.0, chunk_size=2).clipped_sum(inputs, targets, torch.ones(n))
    clip_norm = float(first.norms.median())
    engine = ClippingEngine(model, clip_norm=clip_norm)
    result = engine.clipped_sum(inputs, targets, torch.full((n,), 1.0 / n))
    assert engine.path == "fused", engine.reason
    # The engine aims below C on purpose; here all the rest must agree.
    aim = clip_norm * (1 - SAFETY_MARGIN)
    expected = reference_clipped_sum(model, [ClientBatch(inputs, targets)], clip_norm=aim, per_round=1)
    scale = float(expected.double().norm())
    assert float((result.gradient.double() - expected.double()).norm()) <= tolerance * scale + 1e-9


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, tuple[int, int]]:
    """A Conv2d and an input size that it accepts."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = groups * draw(st.sampled_from([1, 2, 6]))
    kernel, stride, dilation = draw(pairs), draw(pairs), draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, kernel[0] - 1), st.integers(0, kernel[1] - 1)))
    height, width = (
        draw(st.integers(max(d * (k - 1) + 1 - 2 * p, p + 1), 12))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    modes: list[Literal["zeros", "reflect", "replicate", "circular"]] = ["zeros", "reflect", "replicate", "circular"]
    mode = draw(st.sampled_from(modes))
    layer = seeded(
        lambda: nn.Conv2d(
            channels,
            groups * draw(st.integers(1, 3)),
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=draw(st.booleans()),
            padding_mode=mode,
        ),
        seed=draw(st.integers(0, 99)),
    )
    assert isinstance(layer, nn.Conv2d)
    return layer, (height, width)


@EXAMPLES
@given(convolutions(), st.integers(0, 99), st.booleans())
def test_unfolded_patches_times_weights_are_the_convolution(
    case: tuple[nn.Conv2d, tuple[int, int]], seed: int, channels_last: bool
) -> None:
    layer, size = case
    inputs = noise(5, layer.in_channels, *size, seed=seed)
    if channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    expected = layer(inputs)
    shape, groups = ConvShape.of(layer), layer.groups
    weight = shape.from_weight(layer.weight)
    height, width = expected.shape[2:]
    blocks = unfolder(shape, inputs, (height, width), 2, Workspace())
    prepared = prepare(inputs, shape, (height, width))
    found = torch.zeros(5, groups, layer.out_channels // groups, height * width)
    for start in (0, 2, 3):
        blocks.load(prepared, start)
        found[start : start + 2] = 0.0
        for matrix, piece in zip(blocks.matrices, weight, strict=True):
            patches = matrix if shape.channels_last else matrix.transpose(1, 2)
            per_group = piece.view(groups, layer.out_channels // groups, -1)
            per_example = patches.reshape(2, groups, height * width, -1)
            found[start : start + 2] += torch.einsum("ngpc,goc->ngop", per_example, per_group)
    found = found.view_as(expected)
    if layer.bias is not None:
        found = found + layer.bias[:, None, None]
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(shape.to_weight(weight), layer.weight)


@EXAMPLES
@given(convolutions(), st.integers(0, 99), st.booleans())
def test_convolutional_models(case: tuple[nn.Conv2d, tuple[int, int]], seed: int, normalised: bool) -> None:
    layer, size = case
    inputs = noise(5, layer.in_channels, *size, seed=seed)
    features = math.prod(layer(inputs).shape[1:])
    # Normalising a handful of values is so badly conditioned that fp32 itself is off by more than the tolerance.
    head: list[nn.Module] = [nn.GroupNorm(1, layer.out_channels)] if normalised and features >= 16 else []
    model = nn.Sequential(layer, *head, nn.Tanh(), nn.Flatten(), seeded(lambda: nn.Linear(features, 4), seed))
    check(model, inputs, classes=4, seed=seed)


@EXAMPLES
@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_linear_models(layers: list[tuple[int, bool, bool]], features: int, seed: int) -> None:
    def build() -> nn.Module:
        modules: list[nn.Module] = []
        width = features
        for size, bias, norm in layers:
            modules += [nn.Linear(width, size, bias=bias), nn.Tanh()]
            modules += [nn.LayerNorm(size)] if norm and size >= 8 else []
            width = size
        return nn.Sequential(*modules, nn.Linear(width, 3))

    check(seeded(build, seed), noise(6, features, seed=seed), classes=3, seed=seed)


class Tokens(nn.Module):
    """Embedding, normalised, mixed over the sequence by Linear layers."""

    def __init__(self, vocabulary: int, width: int, groups: int, padding: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.mix = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.group_norm = nn.GroupNorm(groups, 2 * width)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.mix(self.embedding(tokens))))
        pooled: Tensor = self.head(self.group_norm(hidden.transpose(1, 2)).transpose(1, 2).mean(dim=1))
        return pooled


@EXAMPLES
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 0]),
    st.integers(2, 6),
    st.integers(0, 99),
)
def test_token_models(vocabulary: int, length: int, groups: int, padding: int | None, width: int, seed: int) -> None:
    tokens = torch.randint(0, vocabulary, (6, length), generator=torch.Generator().manual_seed(seed))
    check(seeded(lambda: Tokens(vocabulary, width, groups, padding), seed), tokens, classes=3, seed=seed)


@pytest.mark.parametrize("kind", ["conv", "grouped", "narrow", "linear"])
def test_layers_whose_gradients_are_sums_over_positions(kind: str) -> None:
    layers: dict[str, tuple[nn.Module, Tensor]] = {
        "conv": (nn.Conv2d(6, 4, 3, stride=2, padding=1), noise(6, 6, 7, 8, seed=1)),
        "grouped": (nn.Conv2d(4, 6, 3, padding="same", groups=2), noise(6, 4, 5, 5, seed=2)),
        "narrow": (nn.Conv2d(1, 4, (4, 3), stride=2), noise(6, 1, 9, 9, seed=3)),
        "linear": (nn.Linear(5, 7), noise(6, 4, 5, seed=4)),
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layer, inputs = layers[kind]
        features = math.prod(layer(inputs).shape[1:])
        model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(features, 3))
    check(model, inputs, classes=3)


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"])
def test_frozen_parameters_do_not_count(frozen: str) -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
        ),
        seed=0,
    )
    model.get_parameter(frozen).requires_grad_(False)
    check(model, noise(5, 2, 6, 6, seed=0), classes=3)
