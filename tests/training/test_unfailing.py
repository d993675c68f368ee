"""A batch goes through a model together only where no values can make that fail, if examples that fail are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor, nn
from torch.nn import functional

from jsam.training.clipping import ClippingEngine, SlowPathWarning, cross_entropy
from jsam.training.clipping.engine import Path
from jsam.training.clipping.rowwise import RANKS
from tests.training.test_rowwise import CASES, ROWS

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
ODD = (torch.nan, torch.inf, -torch.inf, 3.4e38, -3.4e38, 1e-40, 0.0)


class Between(nn.Module):
    """Code of somebody's own between two layers; it runs in vmap if it can."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.table = nn.Linear(12, 16), nn.Linear(16, 4), nn.Embedding(10, 16)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self, self.first(x)))
        return out


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far, self.norm = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
        )
        self.last = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.gelu(self.norm(self.near(x)))
        h = functional.max_pool2d(functional.relu(h + self.far(h)), 2)
        out: Tensor = self.last(functional.dropout(h.flatten(1), 0.1, self.training))
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.mixed, self.last = nn.Embedding(50, 8), nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.mixed(self.table(x)).chunk(3, -1)
        seen = functional.scaled_dot_product_attention(queries, keys, values)
        out: Tensor = self.last((seen * (x != 0).float().unsqueeze(-1)).mean(1))
        return out


class Scaled(nn.Module):
    """No layer rule covers its own parameter, so it takes the vectorised path."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm, self.last = nn.Parameter(torch.ones(12)), nn.LayerNorm(12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x * self.scale)
        h = torch.where(h > 0, (1 + h.abs()).sqrt(), h.exp()) / (1 + h.norm(dim=1, keepdim=True))
        out: Tensor = self.last(torch.cat([h, h.max(1, keepdim=True).values], 1)[:, 1:].clamp(-3, 3))
        return out


def engine_of(model: nn.Module, inputs: Tensor) -> ClippingEngine:
    engine = ClippingEngine(model.train(), clip_norm=1.0, skip_failing=True)
    engine.check(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    return engine


def inputs_for(shape: tuple[int, ...]) -> Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, *shape, generator=source)


@pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning")
@pytest.mark.parametrize(
    ("make", "shape", "path"),
    [(Residual, (1, 6, 6), "fused"), (Scaled, (12,), "vectorised")],
)
@pytest.mark.parametrize("odd", ODD)
def test_models_of_sure_operations_stay_together_and_fail_for_no_number(
    make: Callable[[], nn.Module], shape: tuple[int, ...], path: Path, odd: float
) -> None:
    model = make()
    engine = engine_of(model, inputs_for(shape))
    assert engine.path == path
    inputs = inputs_for(shape)
    inputs[2] = odd
    inputs[3].view(-1)[3:] = odd
    found = engine.clipped_sum(inputs, torch.zeros(ROWS, dtype=torch.int64), torch.ones(ROWS))
    assert torch.isfinite(found.gradient).all()
    assert torch.isfinite(found.norms[:2]).all()
    assert engine.path == path


def test_a_table_may_be_read_at_places_that_the_record_names() -> None:
    """Which tokens are beyond it is known before any parameters come."""
    assert engine_of(Attention(), torch.arange(20).view(4, 5)).path == "fused"


def finite(model: nn.Module, h: Tensor) -> Tensor:
    if not torch.isfinite(h).all():
        raise ArithmeticError
    return h


def cholesky(model: nn.Module, h: Tensor) -> Tensor:
    square = h.view(-1, 4, 4)
    root: Tensor = torch.linalg.cholesky(square @ square.mT + torch.eye(4))
    return root.flatten(1)


def looked_up(model: Any, h: Tensor) -> Tensor:
    return h + torch.as_tensor(model.table(h[:, 0].long().clamp(0, 9)))


def looked_up_in_a_view(model: Any, h: Tensor) -> Tensor:
    """What is written into whole numbers later shows in a view that was there before."""
    places = torch.zeros_like(h[:, 0], dtype=torch.int64)
    seen = places.view(-1)
    places.copy_(h[:, 0].clamp(0, 9))
    return h + torch.as_tensor(model.table(seen))


def looked_up_by_comparison(model: Any, h: Tensor) -> Tensor:
    return h + torch.as_tensor(model.table((h > 0).sum(1) // 2))


def divided(model: nn.Module, h: Tensor) -> Tensor:
    return h * torch.div(7, h[:, :1].long() * 0 + 1, rounding_mode="floor")


def drawn(model: nn.Module, h: Tensor) -> Tensor:
    return h + torch.bernoulli(torch.sigmoid(h))


class _LooksBack(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return _LooksBack.apply(x), in_dims[0]  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        torch.linalg.cholesky(torch.eye(2) + gradient.detach().abs().sum() * torch.eye(2))
        return gradient


def looking_back(model: nn.Module, h: Tensor) -> Tensor:
    return torch.as_tensor(_LooksBack.apply(h))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "between",
    [
        finite,
        cholesky,
        looked_up,
        looked_up_in_a_view,
        looked_up_by_comparison,
        divided,
        drawn,
        looking_back,
    ],
)
def test_code_that_may_fail_for_some_values_runs_one_by_one(between: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.warns(SlowPathWarning):
        engine = engine_of(Between(between), inputs_for((12,)))
    assert engine.path == "one by one"


@pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning")
def test_the_same_code_stays_together_where_a_failure_fails_the_sum() -> None:
    """A run in one place hides nothing from its owner, and is as fast as before."""
    engine = ClippingEngine(Between(cholesky).train(), clip_norm=1.0)
    engine.check(inputs_for((12,)), torch.zeros(ROWS, dtype=torch.int64))
    assert engine.path == "fused"


@pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning")
def test_examples_one_by_one_give_what_a_batch_gives_and_one_that_fails_counts_as_nothing() -> None:
    torch.manual_seed(3)
    model = Between(finite)
    inputs, targets = inputs_for((12,)), torch.arange(ROWS) % 4
    engine = engine_of(model, inputs)
    plain = ClippingEngine(Between(lambda _, h: h).train(), clip_norm=1.0)
    plain.model.load_state_dict(model.state_dict())
    weights = torch.ones(ROWS)
    expected = plain.clipped_sum(inputs, targets, weights)
    torch.testing.assert_close(engine.clipped_sum(inputs, targets, weights).gradient, expected.gradient)
    inputs[1] = torch.inf
    found = engine.clipped_sum(inputs, targets, weights)
    rest = plain.clipped_sum(inputs[[0, 2, 3, 4]], targets[[0, 2, 3, 4]], weights[1:])
    torch.testing.assert_close(found.gradient, rest.gradient)
    assert torch.isinf(found.norms).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(("module", "shape"), CASES, ids=lambda value: str(value).replace("\n", ""))
def test_no_number_makes_a_known_module_fail_forward_or_back(
    module: nn.Module, shape: tuple[int, ...], odd: float
) -> None:
    inputs = inputs_for(shape)
    inputs[2] = odd
    with torch.random.fork_rng(devices=[]):
        outputs = module(inputs.requires_grad_())
        losses = cross_entropy(outputs.flatten(1), torch.zeros(ROWS, dtype=torch.int64))
        losses.sum().backward()  # type: ignore[no-untyped-call]


def test_every_known_module_is_tried_but_the_one_that_looks_rows_up() -> None:
    assert {type(module) for module, _ in CASES} == set(RANKS) - {nn.Embedding}


@pytest.mark.parametrize("place", range(3))
def test_which_tokens_a_chain_of_known_modules_takes_hangs_on_no_parameter(place: int) -> None:
    """So the trial with first weights finds them all. Before a table nothing computes with parameters: it needs whole
    numbers, which no layer with parameters gives."""
    layers: list[nn.Module] = [nn.Flatten(1), nn.Identity(), nn.ReLU()]
    model = nn.Sequential(*layers[:place], nn.Embedding(10, 4), nn.Flatten(1), nn.Linear(12, 4))
    model(torch.zeros(2, 3, dtype=torch.int64))
    for value in model.parameters():
        nn.init.constant_(value, torch.nan)
    model(torch.full((2, 3), 9))
    with pytest.raises(IndexError):
        model(torch.tensor([[0, 1, 10]]))
    with pytest.raises(RuntimeError, match="Expected tensor for argument #1 'indices'"):
        nn.Sequential(nn.Linear(3, 3), nn.Embedding(10, 4))(torch.zeros(2, 3))
