"""Per-example gradients that are kept in bf16: norms of what is stored, and a weighted sum of it in fp64.

The kernels are stand-ins, and where Triton is installed the real ones, interpreted. On a GPU they are tested in
test_cuda.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from tests.conftest import require

torch = require("torch", extra="train")

from torch import Tensor, nn  # noqa: E402

from jsam.training.clipping import ClippingEngine  # noqa: E402
from jsam.training.clipping.chunk_worker import Worker  # noqa: E402
from jsam.training.clipping.clipped_sum import LONGEST_CHAIN  # noqa: E402
from jsam.training.clipping.gpu import cuda_rules, forward  # noqa: E402
from jsam.training.clipping.layers import RULES, Call  # noqa: E402
from jsam.training.clipping.workspace import Workspace  # noqa: E402
from jsam.training.models import build_model  # noqa: E402
from tests.oracles.clipping import ClientBatch, reference_clipped_sum  # noqa: E402
from tests.training.plain_kernels import plain_kernels  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
# numpy's, in whose arrays Triton interprets.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0", "ignore::RuntimeWarning")


@pytest.fixture(autouse=True, params=["plain", "interpreted"] if INTERPRETED else ["plain"])
def kernels_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "plain":
        with plain_kernels():
            yield "plain"
        return
    import triton.language as tl
    from triton.runtime import interpreter

    dot = interpreter.InterpreterBuilder.create_dot

    def widened(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        """Triton interprets bf16 as whole numbers here."""
        return dot(self, *(self.cast_impl(v, tl.float32) if v.dtype == tl.bfloat16 else v for v in (a, b)), *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)
    yield "interpreted"


def a_layer(count: int = 5, kept: Any = torch.bfloat16) -> tuple[nn.Conv2d, Call]:
    source = torch.Generator().manual_seed(7)
    layer = nn.Conv2d(20, 37, 3, stride=2, padding=1)
    x, g = (torch.randn(count, *shape, generator=source) for shape in ((20, 9, 9), (37, 5, 5)))
    return layer, Call(x.to(kept), g.to(kept))


def clipped(layer: nn.Conv2d, call: Call, weights: Tensor, clip_norm: float) -> tuple[Tensor, dict[str, Tensor]]:
    worker = Worker({"": layer}, cuda_rules("bf16"))
    norms = worker.add_chunk({"": [call]}, weights, clip_norm)
    return norms, worker.gradients()


def only(i: int, count: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(i), count).float()


def joint_norm(gradients: dict[str, Tensor]) -> float:
    return float(torch.cat([value.double().flatten() for value in gradients.values()]).norm())


@pytest.mark.parametrize("images", [False, True])
def test_norms_are_those_of_the_numbers_that_are_stored_and_summed(images: bool) -> None:
    """Also where inputs are fp32, as images are; a bias has fp32 gradients."""
    layer, call = a_layer()
    if images:
        call = Call(call.inputs.float(), call.grad_outputs)
    for i in range(5):
        norms, found = clipped(layer, call, only(i, 5), 1e9)
        assert torch.equal(found["weight"], found["weight"].bfloat16().double())
        assert not torch.equal(found["bias"], found["bias"].bfloat16().double())
        assert float(norms[i]) == pytest.approx(joint_norm(found), rel=3e-7)
        exact = torch.nn.grad.conv2d_weight(
            call.inputs[i : i + 1].double(), layer.weight.shape, call.grad_outputs[i : i + 1].double(), 2, 1
        )
        far = float((found["weight"].double() - exact).norm() / exact.norm())
        assert 1e-4 < far < 2.0**-7


def test_gradients_in_fp32_are_kept_in_fp32() -> None:
    layer, call = a_layer(kept=torch.float32)
    _, found = clipped(layer, call, only(0, 5), 1e9)
    assert not torch.equal(found["weight"], found["weight"].bfloat16().double())


@pytest.mark.parametrize(
    ("n", "size"), [(1, 1), (63, 512), (64, 513), (65, 7), (100, 1500), (1000, 144), (1001, 37), (130, 2049)]
)
def test_a_weighted_sum_is_right_to_fp64_and_repeats(n: int, size: int) -> None:
    """One to sixteen shares of rows, the last one ragged; columns that fill no block."""
    from jsam.training.clipping.gpu.card_sums import weighted_sum

    source = torch.Generator().manual_seed(n)
    # What lies behind the rows in memory is not looked at.
    memory = torch.full((n * size + 2000,), torch.nan, dtype=torch.bfloat16)
    rows = memory[: n * size].view(n, size).copy_(torch.randn(n, size, generator=source))
    factors = torch.rand(n, generator=source)
    found, again = weighted_sum(rows, factors), weighted_sum(rows, factors)
    assert found.dtype == torch.float64
    assert torch.equal(found, again)
    products = rows.double() * factors.double()[:, None]
    # No entry passes more roundings than this; as many again for the sum that it is held against.
    bound = 2.0**-53 * (LONGEST_CHAIN + n) * products.abs().sum(0)
    assert bool(((found - products.sum(0)).abs() <= bound).all())
    assert torch.equal(weighted_sum(rows, only(n // 2, n) * 0.3), rows[n // 2].double() * torch.tensor(0.3).double())


def test_rows_with_factor_0_are_not_looked_at() -> None:
    from jsam.training.clipping.gpu.card_sums import weighted_sum

    rows = torch.full((70, 300), torch.nan)
    rows[3], rows[66] = 1.0, 2.0
    factors = torch.zeros(70, dtype=torch.float64)
    factors[3], factors[66] = 0.5, 0.25
    assert torch.equal(weighted_sum(rows, factors), torch.ones(300, dtype=torch.float64))


@pytest.mark.parametrize(
    ("n", "outputs", "size", "bias"), [(1, 1, 1, True), (33, 10, 32, True), (130, 17, 65, False), (600, 70, 5, True)]
)
def test_a_sum_of_outer_products_is_right_to_fp64_and_repeats(n: int, outputs: int, size: int, bias: bool) -> None:
    """Sides that fill no tile, rows that fill no share, and rows with factor 0 that hold anything."""
    from jsam.training.clipping.gpu.card_sums import outer_norms, outer_sum

    source = torch.Generator().manual_seed(n)
    g, x = torch.randn(n, outputs, generator=source), torch.randn(n, size, generator=source)
    factors = torch.rand(n, generator=source).double()
    rows = torch.cat([(g.double()[:, :, None] * x.double()[:, None, :]).flatten(1), *([g.double()] if bias else [])], 1)
    norms = torch.empty(n, dtype=torch.float64)
    outer_norms(norms, g, x, bias=bias)
    torch.testing.assert_close(norms, rows.norm(dim=1), rtol=1e-13, atol=0)
    rows *= factors[:, None]
    if n > 40:
        for i, value in ((3, torch.nan), (35, torch.inf)):
            factors[i], rows[i], g[i], x[i, 0] = 0.0, 0.0, value, value
    found = outer_sum(g, x, factors, bias=bias)
    assert torch.equal(found, outer_sum(g, x, factors, bias=bias))
    # One more rounding than a sum of rows: the factor goes into one side.
    bound = 2.0**-53 * (LONGEST_CHAIN + n + 2) * rows.abs().sum(0)
    assert bool(((found - rows.sum(0)).abs() <= bound).all())


@pytest.mark.parametrize("trained", ["both", "weight", "bias"])
def test_a_linear_layer_agrees_with_its_plain_rule(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two chunks, the second in pieces, with gradients whose squares fp32 has no range for."""
    linear = import_module("jsam.training.clipping.gpu.linear_rule")
    monkeypatch.setattr(linear, "most_outer_rows", lambda outputs, size: 30)
    layer = nn.Linear(20, 7)
    for key, value in layer.named_parameters():
        value.requires_grad_(trained in ("both", key))
    source = torch.Generator().manual_seed(2)
    x, g = torch.randn(70, 20, generator=source) * 1e19, torch.randn(70, 7, generator=source) * 1e-23
    g[50, 3] = torch.nan
    found = []
    for rules in (cuda_rules("fp32"), RULES):
        worker = Worker({"": layer}, rules)
        norms = [
            worker.add_chunk({"": [Call(x[part], g[part])]}, torch.full((len(x[part]),), 0.25), 1e-4)
            for part in (slice(0, 25), slice(25, 70))
        ]
        found.append((torch.cat(norms), worker.gradients()))
    (norms, ours), (their_norms, theirs) = found
    torch.testing.assert_close(norms, their_norms, rtol=1e-6, atol=0)
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-5, atol=1e-9)


def test_the_norms_of_a_bias_are_in_fp64() -> None:
    """Of gradients whose squares fp32 takes for 0."""
    layer = nn.Conv2d(1, 80, 1)
    g = torch.full((2, 80, 1, 2), 1e-25)
    norms, _ = clipped(layer, Call(torch.zeros(2, 1, 1, 2), g), torch.ones(2), 1.0)
    torch.testing.assert_close(norms, torch.full((2,), 2e-25 * math.sqrt(80), dtype=norms.dtype), rtol=1e-6, atol=0)


def test_no_example_passes_the_clipping_norm_where_rounding_makes_it_longer() -> None:
    """Every entry is 1 + 1.5 · 2⁻⁸, which bf16 rounds up: 0.2 % longer than before."""
    layer = nn.Conv2d(32, 16, 1, bias=False)
    pixels = torch.tensor([1.0, 1.5 * 2.0**-8]).expand(3, 32, 1, 2).bfloat16()
    call = Call(pixels, torch.ones(3, 16, 1, 2, dtype=torch.bfloat16))
    for clip_norm in (0.1, 1.0, 7.0):
        _, found = clipped(layer, call, only(1, 3), clip_norm)
        assert clip_norm * (1 - 1e-4) < joint_norm(found) <= clip_norm


def test_no_example_passes_the_clipping_norm_at_random() -> None:
    layer, call = a_layer()
    for i in range(5):
        norms, found = clipped(layer, call, only(i, 5), 0.3)
        assert float(norms[i]) > 0.3
        assert 0.3 * (1 - 1e-4) < joint_norm(found) <= 0.3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_example_that_is_not_finite_shows_in_its_norm_and_counts_as_nothing(value: float) -> None:
    """By the norm a simulated run is stopped (test_without_a_gpu.py)."""
    for kept in (torch.float32, torch.bfloat16):
        layer, call = a_layer(kept=kept)
        _, expected = clipped(layer, call, torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]), 1.0)
        call.grad_outputs[2, 5, 1, 1] = value
        norms, found = clipped(layer, call, torch.ones(5), 1.0)
        assert torch.isfinite(norms).tolist() == [True, True, False, True, True]
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_a_finite_gradient_with_an_infinite_norm_counts_as_nothing(kept: Any) -> None:
    layer, call = a_layer(kept=kept)
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    _, expected = clipped(layer, call, weights, 1.0)
    call.grad_outputs[2] = 1e30
    norms, found = clipped(layer, call, torch.ones(5), 1.0)
    assert float(norms[2]) == float("inf")
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_gradient_that_bf16_rounds_to_infinity_is_treated_as_one_beyond_fp32() -> None:
    """Between the largest number of bf16 and that of fp32, and beyond: it counts as nothing."""
    layer = nn.Conv2d(1, 1, 1, bias=False)
    for second in (5e35, 1e36, 2e36):
        x = torch.tensor([3.3895e38, second]).view(1, 1, 1, 2).bfloat16()
        norms, found = clipped(layer, Call(x, torch.ones_like(x)), torch.ones(1), 1.0)
        assert not bool(torch.isfinite(norms).any())
        assert not bool(found["weight"].any())


def test_half_as_much_is_counted_and_more_examples_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not as an attribute of its package, which may be a module built on other kernels.
    convolution = import_module("jsam.training.clipping.gpu.conv_rule")
    layer = nn.Conv2d(1, 3, 3)
    rule = convolution.KernelConvRule("", layer, Workspace(), tf32=True)
    low, full = (
        [Call(torch.zeros(8, 1, 5, 5, dtype=t), torch.zeros(8, 3, 3, 3, dtype=t))]
        for t in (torch.bfloat16, torch.float32)
    )
    assert (rule.kept_floats(low), rule.kept_floats(full)) == (14 + 3, 27 + 3)
    monkeypatch.setattr(convolution, "_KEPT_BYTES", 2 * 8 * 27)
    assert (rule.kept_floats(low), rule.kept_floats(full)) == (14 + 3, 0)


def test_a_buffer_stays_where_it_is_when_another_type_is_asked_for_in_between() -> None:
    """A recorded CUDA graph writes to the address that it knows, whatever lies there by then."""
    workspace, like = Workspace(), torch.zeros(1)
    low = workspace.take("a", (2, 3), like=like, dtype=torch.bfloat16)
    full = workspace.take("a", (2, 3), like=like)
    assert (low.dtype, full.dtype) == (torch.bfloat16, torch.float32)
    assert workspace.take("a", (3, 2), like=like, dtype=torch.bfloat16).data_ptr() == low.data_ptr()
    assert workspace.take("a", (6,), like=like).data_ptr() == full.data_ptr()
    assert workspace.generation == 0
    assert workspace.take("a", (7,), like=like).data_ptr() != full.data_ptr()
    assert workspace.generation == 1


def test_a_round_agrees_with_the_reference_and_keeps_the_bound() -> None:
    """The paper's network for MNIST, forward and back as on a card but for tf32's rounding."""
    model = build_model("mnist", 3)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    source = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(3, 1, 28, 28, generator=source), torch.arange(3)
    expected = reference_clipped_sum(model, [ClientBatch(inputs=inputs, targets=targets)], clip_norm=0.5, per_round=1)
    engine = ClippingEngine(model, clip_norm=0.5, workers=1)
    fused = engine._fused
    fused._workers = [Worker({name: module for module, name in fused._names.items()}, cuda_rules("bf16"))]
    fused._forward, fused._channels_last, engine.precision = forward.merged(model, "bf16"), True, "bf16"
    found = engine.clipped_sum(inputs, targets, torch.full((3,), 1 / 3)).gradient
    assert engine.path == "fused"
    assert 1e-4 < float((found - expected).norm() / expected.norm()) < 1e-2
    assert fused._footprint is not None
    assert fused._footprint.kept == (1024 + 8192) // 2 + 16 + 32
    for i in range(3):
        alone = engine.clipped_sum(inputs, targets, only(i, 3)).gradient
        assert float(alone.double().norm()) <= 0.5
