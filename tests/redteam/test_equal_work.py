"""How much is computed must not tell whether a record is there at which a model's code fails: it is counted here.

A server chooses parameters at which the model fails for one record, or for some. The time of a reply follows from what
is computed; seconds depend on the machine, so these tests count passes and torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")
    require("torch", extra="train")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jsam.training.federated import fit_records, parameters
from jsam.training.federated.local_training import measured
from jsam.training.models import build_model
from tests.redteam.lone_client import install

pytestmark = pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning")

CODE = """\
import numpy as np
import torch
from torch import nn

CALLS = []

class Early(nn.Module):
    '''It looks at its numbers before anything else is computed.'''

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def look(self, h):
        if not torch.isfinite(h).all():
            raise ArithmeticError("not finite")

    def forward(self, x):
        CALLS.append(len(x))
        h = self.first(x)
        self.look(h)
        return self.last(torch.tanh(self.middle(torch.tanh(h))))

class Late(Early):
    '''It looks when all is computed.'''

    def forward(self, x):
        CALLS.append(len(x))
        h = self.first(x)
        out = self.last(torch.tanh(self.middle(torch.tanh(h))))
        self.look(h)
        return out

class Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if not torch.isfinite(gradient).all():
            raise ArithmeticError("no gradient")
        return gradient

class Back(Early):
    '''Its backward pass fails.'''

    def forward(self, x):
        CALLS.append(len(x))
        h = self.first(x)
        return self.last(torch.tanh(self.middle(Checked.apply((1e-30 * h).abs().sqrt() * 1e15))))

class Whole(Early):
    '''Nothing hangs on values, so it runs in vmap; torch's own function fails there, for the whole batch.'''

    def forward(self, x):
        CALLS.append(len(x))
        h = self.first(x)
        shift = h.square().sum(1)[:, None, None] + 1
        squares = torch.tanh(h).view(-1, 4, 4)
        root = torch.linalg.cholesky(squares @ squares.mT + shift * torch.eye(4))
        return self.last(torch.tanh(self.middle(root.flatten(1))))

class Rows(Early):
    '''A table with a row for each tenth of a number that parameters decide.'''

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 16)

    def forward(self, x):
        CALLS.append(len(x))
        h = self.first(x)
        return self.last(torch.tanh(self.middle(self.table((h[:, 0].abs()).long().clamp(max=10)))))

class Foreign(torch.autograd.Function):
    '''Its own rule for vmap sees all records at once, and looks at them where no operation of torch shows it.'''

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x):
        if not np.isfinite(x.detach().numpy()).all():
            raise ArithmeticError("not finite")
        return Foreign.apply(x), in_dims[0]

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Ruled(Early):
    def forward(self, x):
        CALLS.append(len(x))
        return self.last(torch.tanh(self.middle(torch.tanh(Foreign.apply(self.first(x))))))

early, late, back, whole, rows, ruled = Early, Late, Back, Whole, Rows, Ruled
"""
MODELS = "early", "late", "back", "whole", "rows"
RECORDS = 12


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, CODE, *MODELS, "ruled")


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Work:
    forward: list[int]
    """The number of examples in each call of the model."""
    backward: int
    operations: int


def counted(compute: Callable[[], Any]) -> tuple[Any, Work]:
    import wards_of_test  # type: ignore[import-not-found]

    calls: list[int] = wards_of_test.CALLS
    calls.clear()
    backward, grad = list[int](), torch.autograd.grad

    def watched(*given: Any, **options: Any) -> Any:
        backward.append(1)
        return grad(*given, **options)

    with pytest.MonkeyPatch.context() as patch, _Operations() as operations:  # type: ignore[no-untyped-call]
        patch.setattr(torch.autograd, "grad", watched)
        result = compute()
    return result, Work(list(calls), len(backward), operations.count)


def records(traps: list[int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The first number is 0 for all but the traps, so its weights decide about these alone."""
    rng = np.random.default_rng(0)
    inputs = (0.9 * rng.random((RECORDS, 12))).astype(np.float32)
    inputs[:, 0] = 0
    inputs[traps, 0] = 2
    return inputs, rng.integers(0, 4, RECORDS)


def overflowing(model: str) -> NDArray[np.float32]:
    built = build_model(model, 0)
    with torch.no_grad():
        built.first.weight[:, 0] = torch.finfo(torch.float32).max  # type: ignore[union-attr,operator]
    return parameters.flattened(built)


def mean(model: str, inputs: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    fit = np.ones(RECORDS, dtype=np.bool_)
    return fit_records.mean_of_fit(model, overflowing(model), inputs, targets, 1.0, fit)


@pytest.mark.parametrize("traps", [[0], [5], [RECORDS - 1], [2, 3, 7], list(range(RECORDS))], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_as_many_passes_are_run_whichever_records_fail_and_never_more_operations(model: str, traps: list[int]) -> None:
    mean(model, *records([]))  # builds the engine
    ordinary, expected = counted(partial(mean, model, *records([])))
    found, work = counted(partial(mean, model, *records(traps)))
    assert work.forward == expected.forward
    assert work.backward == expected.backward
    # A pass that fails ends early, which spares at most itself.
    one = expected.operations / RECORDS
    assert expected.operations - len(traps) * one <= work.operations <= expected.operations
    # The traps count as nothing and all others as ever, to the bit.
    inputs, targets = records(traps)
    np.testing.assert_array_equal(found, mean(model, inputs, np.where(inputs[:, 0] == 2, 99, targets)))
    assert np.linalg.norm(ordinary) > 0
    assert bool(found.any()) == (len(traps) < RECORDS)


@pytest.mark.parametrize("model", MODELS)
def test_one_record_changes_the_work_by_less_than_one_forward_pass(model: str) -> None:
    """Or a backward pass, where that one fails."""
    mean(model, *records([]))
    works = [counted(partial(mean, model, *records(traps)))[1] for traps in ([], [5], [5, 9])]
    saved = [before.operations - after.operations for before, after in pairwise(works)]
    assert saved[0] == saved[1]
    assert 0 <= saved[0] < works[0].operations / RECORDS


def test_a_batch_that_fails_although_nothing_showed_it_could_goes_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """That takes longer, as the threat model says; with noise alone one record would decide about all others."""
    inputs, targets = records([])
    ordinary = mean("ruled", inputs, targets)
    assert "one by one" not in caplog.text
    inputs[5] = np.inf
    found = mean("ruled", inputs, targets)
    assert "one by one from now on" in caplog.text
    inputs[5], targets[5] = 0, 99
    without = mean("ruled", inputs, targets)
    np.testing.assert_allclose(found, without, atol=1e-6)
    assert np.linalg.norm(without - ordinary) > 1e-3


def test_trying_the_records_of_an_offer_calls_the_model_once_for_each_whichever_fail() -> None:
    works = []
    for traps in ([], [0], [5, 6], list(range(RECORDS))):
        inputs, targets = records(traps)
        inputs[traps, 0] = np.inf
        tried = partial(fit_records._forward, build_model("late", 0).train())
        fit, work = counted(partial(fit_records._tried, inputs, targets, tried))
        assert np.flatnonzero(~fit).tolist() == traps
        works.append(work)
    assert all(work.forward == [1] * RECORDS for work in works)
    assert all(work.operations <= works[0].operations for work in works)


def test_what_is_measured_for_the_step_is_what_a_round_with_such_a_record_computes() -> None:
    """The time between replies is at least twice the measured one, so a failing record never reaches the next."""
    inputs, targets = records([5])
    for model in MODELS:
        mean(model, inputs, targets)
        _, work = counted(partial(mean, model, inputs, targets))
        _, made_up = counted(partial(measured, model, "<f4", inputs.shape, targets.shape))
        assert work.forward == made_up.forward
        assert work.operations <= made_up.operations
