# mypy: ignore-errors
"""Kernels of sums and norms in fp64 from numbers that are read where they lie, in fp32 or bf16."""

from __future__ import annotations

import triton
import triton.language as tl

# Earlier ones refuse a product of fp64 numbers.
MULTIPLIES_FP64 = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)


@triton.jit
def weighted_sum_kernel(
    matrix_ptr,
    factor_ptr,
    out_ptr,
    n,
    size,
    share,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """out[s, j] = Σ_i factor[i] matrix[i, j] over the s-th share of the n rows: fp64, always in the same order.

    Rows with factor 0 may hold anything: they are read like all others, and what was read is put aside. Unless
    WEIGHTED, all factors are 1.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < size
    first = tl.program_id(1) * share
    stop = tl.minimum(first + share, n)
    # Added up across rows once, at the end: threads would wait for each other at every step.
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    for start in tl.range(first, stop, ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, ROWS)
        real = rows < stop
        # A matrix may have more than 2³¹ entries.
        places = rows.to(tl.int64)[:, None] * size + columns[None, :]
        values = tl.load(matrix_ptr + places, mask=real[:, None] & there[None, :], other=0.0).to(tl.float64)
        if WEIGHTED:
            factors = tl.load(factor_ptr + rows, mask=real, other=0.0)
            values = tl.where(factors[:, None] != 0.0, values, 0.0)
            total += values * factors[:, None]
        else:
            total += values
    tl.store(out_ptr + tl.program_id(1).to(tl.int64) * size + columns, tl.sum(total, axis=0), mask=there)


@triton.jit
def outer_sum_kernel(
    g_ptr,
    x_ptr,
    factor_ptr,
    out_ptr,
    n,
    outputs,
    size,
    entries,
    share,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out[s] = Σ_i factor[i] g[i] x[i]ᵀ, then Σ_i factor[i] g[i] if BIAS, over the s-th share of the n rows, in fp64.

    Rows with factor 0 may hold anything, as above.
    """
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    outs = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    there = columns < size
    out_there = outs < outputs
    first = tl.program_id(2) * share
    stop = tl.minimum(first + share, n)
    total = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float64)
    bias = tl.zeros((BLOCK_O, ROWS), dtype=tl.float64)
    for start in range(first, stop, ROWS):
        rows = start + tl.arange(0, ROWS)
        real = rows < stop
        places = rows.to(tl.int64)
        factors = tl.load(factor_ptr + rows, mask=real, other=0.0)
        counts = factors != 0.0
        g = tl.load(
            g_ptr + places[None, :] * outputs + outs[:, None], mask=real[None, :] & out_there[:, None], other=0.0
        )
        x = tl.load(x_ptr + places[:, None] * size + columns[None, :], mask=real[:, None] & there[None, :], other=0.0)
        g = tl.where(counts[None, :], g.to(tl.float64), 0.0) * factors[None, :]
        x = tl.where(counts[:, None], x.to(tl.float64), 0.0)
        total = tl.dot(g, x, total, out_dtype=tl.float64)
        if BIAS:
            bias += g
    out_ptr += tl.program_id(2).to(tl.int64) * entries
    places = outs.to(tl.int64)[:, None] * size + columns[None, :]
    tl.store(out_ptr + places, total, mask=out_there[:, None] & there[None, :])
    if BIAS:
        if tl.program_id(0) == 0:
            tl.store(out_ptr + (entries - outputs) + outs, tl.sum(bias, axis=1), mask=out_there)


@triton.jit
def outer_norms_kernel(
    g_ptr,
    x_ptr,
    norm_ptr,
    n,
    outputs,
    size,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """norm[i] of g[i] x[i]ᵀ if WEIGHT, of g[i] if BIAS, and of both side by side if both, in fp64."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    norm = tl.sqrt(_squares(g_ptr, rows, n, outputs, ROWS, BLOCK))
    if WEIGHT:
        # Roots first: a product of squares may leave the range of fp64.
        norm *= tl.sqrt(_squares(x_ptr, rows, n, size, ROWS, BLOCK) + BIAS)
    tl.store(norm_ptr + rows, norm, mask=rows < n)


@triton.jit
def _squares(ptr, rows, n, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float64)
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = (rows < n)[:, None] & (columns < size)[None, :]
        values = tl.load(ptr + rows.to(tl.int64)[:, None] * size + columns[None, :], mask=mask, other=0.0)
        total += values.to(tl.float64) * values.to(tl.float64)
    return tl.sum(total, axis=1)
