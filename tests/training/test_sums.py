"""Running sums: right to the last digits of fp64 over many blocks, and the same for every way in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from torch import Tensor

from jsam.training.clipping import sums
from jsam.training.clipping.clipped_sum import LONGEST_CHAIN
from jsam.training.clipping.sums import Factors, Run, RunningSum, runs_of
from jsam.training.clipping.workspace import Workspace

CPU = torch.device("cpu")


def factors(values: Tensor) -> Factors:
    """As they are, of records that all count."""
    return Factors(values, torch.ones_like(values), 1.0)


def test_blocks_are_joined_without_error() -> None:
    """A large number, many that are too small to be seen beside it, and the large one again with the other sign."""
    total = RunningSum(1, CPU)
    for value in (2.0**60, *[1.0 + 2.0**-30] * 500, -(2.0**60)):
        total.join(torch.tensor([value], dtype=torch.float64))
    assert float(total.value()) == 500 * (1.0 + 2.0**-30)


@pytest.mark.parametrize("long_row", [1, 1 << 40])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 255, 257, 9000])
def test_rows_and_products_are_summed_over_blocks_of_any_size(
    count: int, long_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_LONG_ROW", long_row)
    source = torch.Generator().manual_seed(count)
    left, right = torch.randn(count, 2, generator=source), torch.randn(count, 3, generator=source)
    values = torch.rand(count, generator=source).double()
    rows, products, workspace = RunningSum(6, CPU), RunningSum(6, CPU), Workspace()
    outer = torch.einsum("na,nb->nab", left, right)
    exact = torch.einsum("n,nab->ab", values, outer.double()).flatten()
    # In pieces, as a convolution has them: (pieces, n, columns).
    for start in range(0, count, 100):
        part = slice(start, start + 100)
        rows.add_rows(outer[part].transpose(0, 1).contiguous(), factors(values[part]), workspace)
        products.add_products(left[part], right[part], factors(values[part]), workspace)
    size = float(torch.einsum("n,nab->ab", values, outer.double().abs()).max())
    assert (
        float(
            (products.value() - torch.einsum("n,na,nb->ab", values, left.double(), right.double()).flatten())
            .abs()
            .max()
        )
        <= 1e-14 * size
    )
    assert float((rows.value() - exact).abs().max()) <= (3e-6 if long_row == 1 else 1e-14) * size


@pytest.mark.parametrize("long_row", [1, 1 << 40])
def test_rows_that_count_as_nothing_may_hold_anything(long_row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_LONG_ROW", long_row)
    rows = torch.ones(40, 5)
    rows[3], rows[17], rows[39] = torch.nan, torch.inf, -torch.inf
    values = torch.full((40,), 0.5, dtype=torch.float64)
    values[[3, 17, 39]] = 0.0
    by_rows, by_products = RunningSum(5, CPU), RunningSum(25, CPU)
    by_products.add_products(rows.clone(), rows.clone(), factors(values), Workspace())
    by_rows.add_rows(rows, factors(values), Workspace())
    assert torch.equal(by_rows.value(), torch.full((5,), 18.5, dtype=torch.float64))
    assert torch.equal(by_products.value(), torch.full((25,), 18.5, dtype=torch.float64))


def test_short_products_side_by_side_are_the_long_one() -> None:
    """As a card does them: the last one shorter than the others, or alone."""
    for count in (1, 127, 128, 129, 1000):
        left, right = torch.rand(count, 3, dtype=torch.float64), torch.rand(count, 4, dtype=torch.float64)
        torch.testing.assert_close(sums._joint(left, right), left.t() @ right, rtol=1e-13, atol=0)
    assert sums._RECORDS["cuda"] + sums._PRODUCTS <= LONGEST_CHAIN


def test_weights_of_0_change_no_run() -> None:
    weights = torch.tensor([0.5, 0.5, 0.25, 0.25, 0.5])
    whole = runs_of(weights, 2.0)
    assert whole == [Run(0, 2, 1.0), Run(2, 4, 0.5), Run(4, 5, 1.0)]
    for i in (1, 3):
        emptied = weights.clone()
        emptied[i] = 0.0
        assert runs_of(emptied, 2.0) == whole
    assert runs_of(torch.tensor([0.0, 0.5, 0.0]), 2.0) == [Run(0, 3, 1.0)]
    assert runs_of(torch.zeros(3), 2.0) == [Run(0, 3, 0.0)]


def test_records_of_weight_0_change_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what the others add moves by a bit when the only record that counts in a block is emptied."""
    monkeypatch.setattr(sums, "_LONG_ROW", 1)
    rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    rows[20:30] = 0.0
    found = []
    for counts in (True, False):
        weights = torch.full((60,), 0.25, dtype=torch.float64)
        weights[20:30] = 0.0
        weights[25] = 0.25 * counts
        total = RunningSum(4, CPU)
        for start in range(0, 60, 10):
            part = slice(start, start + 10)
            total.add_rows(rows[part].clone(), Factors.of(torch.ones(10).double(), weights[part], 1.0), Workspace())
        found.append(total.value())
    assert torch.equal(*found)
    assert float(found[0].norm()) > 1


def test_factors_of_odd_norms_are_0_and_all_others_as_clipping_says() -> None:
    norms = torch.tensor([0.0, 0.5, 4.0, math.inf, math.nan], dtype=torch.float64)
    found = Factors.of(norms, torch.full((5,), 0.5, dtype=torch.float64), 1.0)
    assert found.values.tolist() == pytest.approx([0.5, 0.5, 0.125, 0.0, 0.0], rel=1e-4)
    assert found.keep.tolist() == [-1, -1, -1, 0, 0]
    without_clipping = Factors.of(norms, torch.ones(5, dtype=torch.float64), math.inf)
    assert without_clipping.values.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
