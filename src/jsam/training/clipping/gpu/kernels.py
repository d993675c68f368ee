# mypy: ignore-errors
"""Triton kernels: a convolution's per-example weight gradients and their norms, without a patch matrix in memory.

The matrix of patches is only ever addressed: a program holds one example's tile of output channels by weight entries
and walks over the output positions, reading inputs through the cache as the convolution itself would.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def sample_gradients_kernel(
    x_ptr,
    g_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    x_n,
    x_c,
    x_h,
    x_w,
    g_n,
    g_o,
    g_p,
    H: tl.constexpr,
    W: tl.constexpr,
    POSITIONS: tl.constexpr,
    norm_t,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    OW: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    BIAS: tl.constexpr,
    POSITIONS_LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """weight[n, o, (i, j, c)] = Σ_p g[n, o, p] x[n, c, patch p at (i, j)], and the norm of each tile as it is stored.

    Entries are in the order kernel row, kernel column, channel: neighbours are neighbours in channels-last inputs.
    """
    COLUMNS: tl.constexpr = KH * KW * IN
    ALIGNED: tl.constexpr = IN % BLOCK_C == 0
    tile_o = tl.program_id(0)
    tile_c = tl.program_id(1)
    n = tl.program_id(2).to(tl.int64)
    outs = tile_o * BLOCK_O + tl.arange(0, BLOCK_O)
    columns = tile_c * BLOCK_C + tl.arange(0, BLOCK_C)
    out_there = outs < OUT
    column_there = columns < COLUMNS
    g_base = g_ptr + n * g_n
    x_base = x_ptr + n * x_n
    total = tl.zeros((BLOCK_O, BLOCK_C), dtype=tl.float32)
    bias = tl.zeros((BLOCK_O,), dtype=tl.float32)
    for start in range(0, POSITIONS, BLOCK_P):
        positions = start + tl.arange(0, BLOCK_P)
        there = positions < POSITIONS
        top = (positions // OW) * STRIDE_H - PAD_H
        left = (positions % OW) * STRIDE_W - PAD_W
        g = tl.load(
            g_base + positions[None, :] * g_p + outs[:, None] * g_o,
            mask=there[None, :] & out_there[:, None],
            other=0.0,
        )
        if POSITIONS_LAST:
            channels = columns % IN
            entries = columns // IN
            rows = top[None, :] + ((entries // KW) * DILATION_H)[:, None]
            cols = left[None, :] + ((entries % KW) * DILATION_W)[:, None]
            inside = there[None, :] & column_there[:, None] & (rows >= 0) & (rows < H) & (cols >= 0) & (cols < W)
            x = tl.trans(tl.load(x_base + rows * x_h + cols * x_w + channels[:, None] * x_c, mask=inside, other=0.0))
        elif ALIGNED:
            # All columns of the tile belong to one kernel entry: the border is a matter of positions alone.
            entry = (tile_c * BLOCK_C) // IN
            rows = top + (entry // KW) * DILATION_H
            cols = left + (entry % KW) * DILATION_W
            inside = there & (rows >= 0) & (rows < H) & (cols >= 0) & (cols < W)
            channels = columns - entry * IN
            x = tl.load(
                x_base + (rows * x_h + cols * x_w)[:, None] + channels[None, :] * x_c,
                mask=inside[:, None],
                other=0.0,
            )
        else:
            channels = columns % IN
            entries = columns // IN
            rows = top[:, None] + ((entries // KW) * DILATION_H)[None, :]
            cols = left[:, None] + ((entries % KW) * DILATION_W)[None, :]
            inside = there[:, None] & column_there[None, :] & (rows >= 0) & (rows < H) & (cols >= 0) & (cols < W)
            x = tl.load(x_base + rows * x_h + cols * x_w + channels[None, :] * x_c, mask=inside, other=0.0)
        total = tl.dot(g, x.to(g.dtype), total, input_precision=PRECISION)
        if BIAS:
            bias += tl.sum(g.to(tl.float32), axis=1)
    stored = total.to(weight_ptr.dtype.element_ty)
    tl.store(
        weight_ptr + n * (OUT * COLUMNS) + outs[:, None] * COLUMNS + columns[None, :],
        stored,
        mask=out_there[:, None] & column_there[None, :],
    )
    if BIAS:
        if tile_c == 0:
            tl.store(bias_ptr + n * OUT + outs, bias, mask=out_there)
    tile = tile_o * tl.num_programs(1) + tile_c
    # Of what will be summed up: rounding may make a gradient longer.
    total = stored.to(tl.float32)
    tl.store(norm_ptr + tile.to(tl.int64) * norm_t + n, tl.sqrt_rn(tl.sum(total * total)))


@triton.jit
def activate_kernel(
    y_ptr,
    bias_ptr,
    out_ptr,
    index_ptr,
    rounded_ptr,
    total,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    TANH: tl.constexpr,
    BIAS: tl.constexpr,
    ROUNDED: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = activation(max over the window of y, plus bias): both activations rise, so the maximum may go first.

    If ROUNDED, the same is written a second time, in fewer bits.
    """
    ACROSS: tl.constexpr = C if CHANNELS_LAST else 1
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = e < total
    if CHANNELS_LAST:
        c = e % C
        rest = e // C
        ow = rest % OW
        rest = rest // OW
        base = (((rest // OH) * H + (rest % OH) * STRIDE) * W + ow * STRIDE) * C + c
    else:
        ow = e % OW
        rest = e // OW
        oh = rest % OH
        rest = rest // OH
        c = rest % C
        base = (rest * H + oh * STRIDE) * W + ow * STRIDE
    best = tl.load(y_ptr + base, mask=there, other=0.0).to(tl.float32)
    if KERNEL > 1:
        where = tl.zeros((BLOCK,), dtype=tl.int32)
        for k in tl.static_range(1, KERNEL * KERNEL):
            value = tl.load(y_ptr + base + ((k // KERNEL) * W + k % KERNEL) * ACROSS, mask=there, other=0.0).to(
                tl.float32
            )
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            where = tl.where(better, k, where)
        tl.store(index_ptr + e, where.to(tl.uint8), mask=there)
    if BIAS:
        best += tl.load(bias_ptr + c, mask=there, other=0.0).to(tl.float32)
    if TANH:
        out = libdevice.tanh(best)
    else:
        # Not a maximum, which would turn a NaN into 0.
        out = tl.where(best < 0.0, 0.0, best)
    tl.store(out_ptr + e, out.to(out_ptr.dtype.element_ty), mask=there)
    if ROUNDED:
        tl.store(rounded_ptr + e, out.to(rounded_ptr.dtype.element_ty), mask=there)


@triton.jit
def activate_backward_kernel(
    grad_ptr,
    out_ptr,
    index_ptr,
    result_ptr,
    total,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    TANH: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient at y, gathered from the windows that chose it: each entry is written once, nothing is added."""
    ACROSS: tl.constexpr = C if CHANNELS_LAST else 1
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = e < total
    if KERNEL == 1:
        grad = tl.load(grad_ptr + e, mask=there, other=0.0).to(tl.float32)
        out = tl.load(out_ptr + e, mask=there, other=0.0).to(tl.float32)
        if TANH:
            result = grad * (1.0 - out * out)
        else:
            result = tl.where(out > 0.0, grad, 0.0)
    else:
        if CHANNELS_LAST:
            c = e % C
            rest = e // C
            w = rest % W
            rest = rest // W
            h = rest % H
            base = (rest // H) * (OH * OW * C) + c
        else:
            w = e % W
            rest = e // W
            h = rest % H
            base = (rest // H) * (OH * OW)
        REACH: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
        result = tl.zeros((BLOCK,), dtype=tl.float32)
        for k in tl.static_range(0, REACH * REACH):
            oh = h // STRIDE - k // REACH
            ow = w // STRIDE - k % REACH
            i = h - oh * STRIDE
            j = w - ow * STRIDE
            window = there & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW) & (i < KERNEL) & (j < KERNEL)
            place = base + (oh * OW + ow) * ACROSS
            chosen = window & (tl.load(index_ptr + place, mask=window, other=255).to(tl.int32) == i * KERNEL + j)
            grad = tl.load(grad_ptr + place, mask=chosen, other=0.0).to(tl.float32)
            out = tl.load(out_ptr + place, mask=chosen, other=0.0).to(tl.float32)
            if TANH:
                result += grad * (1.0 - out * out)
            else:
                result += tl.where(out > 0.0, grad, 0.0)
    tl.store(result_ptr + e, result.to(result_ptr.dtype.element_ty), mask=there)


@triton.jit
def convolve_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    x_n,
    x_c,
    x_h,
    x_w,
    out_n,
    out_c,
    out_p,
    total,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OW: tl.constexpr,
    POSITIONS: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    POSITIONS_LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[n, o, p] = Σ w[o, (i, j, c)] x[n, c, patch p at (i, j)], or with x and out exchanged if TRANSPOSED."""
    COLUMNS: tl.constexpr = KH * KW * IN
    ALIGNED: tl.constexpr = IN % BLOCK_K == 0
    places = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    outs = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    there = places < total
    n = (places // POSITIONS).to(tl.int64)
    position = places % POSITIONS
    if TRANSPOSED:
        top = position // OW + PAD_H
        left = position % OW + PAD_W
    else:
        top = (position // OW) * STRIDE_H - PAD_H
        left = (position % OW) * STRIDE_W - PAD_W
    x_base = n * x_n
    result = tl.zeros((BLOCK_P, BLOCK_O), dtype=tl.float32)
    for start in range(0, COLUMNS, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        real = columns < COLUMNS
        channels = columns % IN
        if ALIGNED:
            # All columns of the step belong to one kernel entry: addresses are a matter of positions alone.
            entry = start // IN
            down = (entry // KW) * DILATION_H
            right = (entry % KW) * DILATION_W
            rows = top - down if TRANSPOSED else top + down
            cols = left - right if TRANSPOSED else left + right
            inside = there & (rows >= 0) & (cols >= 0)
        else:
            entries = columns // IN
            down = (entries // KW) * DILATION_H
            right = (entries % KW) * DILATION_W
            if POSITIONS_LAST:
                rows = top[None, :] - down[:, None] if TRANSPOSED else top[None, :] + down[:, None]
                cols = left[None, :] - right[:, None] if TRANSPOSED else left[None, :] + right[:, None]
                inside = there[None, :] & real[:, None] & (rows >= 0) & (cols >= 0)
            else:
                rows = top[:, None] - down[None, :] if TRANSPOSED else top[:, None] + down[None, :]
                cols = left[:, None] - right[None, :] if TRANSPOSED else left[:, None] + right[None, :]
                inside = there[:, None] & real[None, :] & (rows >= 0) & (cols >= 0)
        if TRANSPOSED:
            inside = inside & (rows % STRIDE_H == 0) & (cols % STRIDE_W == 0)
            rows = rows // STRIDE_H
            cols = cols // STRIDE_W
        inside = inside & (rows < H) & (cols < W)
        place = rows * x_h + cols * x_w
        if POSITIONS_LAST:
            if ALIGNED:
                place = place[None, :]
                inside = inside[None, :]
            place = x_base[None, :] + place + channels[:, None] * x_c
            x = tl.trans(tl.load(x_ptr + place, mask=inside, other=0.0))
        else:
            if ALIGNED:
                place = place[:, None]
                inside = inside[:, None]
            x = tl.load(x_ptr + x_base[:, None] + place + channels[None, :] * x_c, mask=inside, other=0.0)
        w = tl.load(
            w_ptr + outs[:, None] * COLUMNS + columns[None, :], mask=(outs < OUT)[:, None] & real[None, :], other=0.0
        )
        result = tl.dot(x.to(w.dtype), tl.trans(w), result, input_precision=PRECISION)
    target = out_ptr + n[:, None] * out_n + position[:, None] * out_p + outs[None, :] * out_c
    tl.store(target, result.to(out_ptr.dtype.element_ty), mask=there[:, None] & (outs < OUT)[None, :])
