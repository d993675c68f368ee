"""Convolution inputs unfolded into patch matrices, block after block into the same memory.

A full patch matrix repeats every input kernel-height times. Where that is much, the rows are split by stride phase and
only the width is unfolded; then, for one kernel row, the patches of all output positions lie a constant stride apart,
and the matrix product can read them in place. With few channels the layout is channel first, where the runs to copy are
rows of the map. Buffers and views are made once for a block size: a block is so short that making them would count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from jsam.training.clipping.conv_shape import ConvShape
from jsam.training.clipping.workspace import Workspace


def pad(x: Tensor, shape: ConvShape) -> Tensor:
    """The input as the convolution sees it, borders included."""
    if not any(shape.padding):
        return x
    mode = "constant" if shape.padding_mode == "zeros" else shape.padding_mode
    return functional.pad(x, list(shape.padding), mode=mode)


class Unfolder(ABC):
    """Patch matrices of `size` examples at a time."""

    matrices: list[Tensor]
    """One a step, views of scratch that `load` fills: (size, positions, columns) when channels-last, otherwise
    (size × groups, columns, positions)."""

    @abstractmethod
    def load(self, prepared: Tensor, start: int) -> None:
        """Unfolds the examples from `start` on."""


def prepare(x: Tensor, shape: ConvShape, output: tuple[int, int]) -> Tensor:
    """What is done once for a whole chunk, before its blocks are loaded.

    Channels-last: the layout. Channel first, for stride (ph, pw): phases[n, c, b, a, r, q] is
    x[n, c, r·ph + a, q·pw + b], so that strided reads are done once and contiguous ones afterwards; all shifts along
    q as one overlapping view where there is one.
    """
    if shape.channels_last:
        if shape.padding_mode != "zeros":
            x = pad(x, shape)
        return x.permute(0, 2, 3, 1).contiguous()
    rows, columns = shape.rows_per_phase(output[0]), shape.columns_per_phase(output[1])
    height, width = rows * shape.stride[0], columns * shape.stride[1]
    x = pad(x, shape)
    below, right = height - x.shape[2], width - x.shape[3]
    if below > 0 or right > 0:
        x = functional.pad(x, [0, max(right, 0), 0, max(below, 0)])
    x = x[:, :, :height, :width]
    split = torch.unflatten(torch.unflatten(x, 3, (columns, shape.stride[1])), 2, (rows, shape.stride[0]))
    phases = split.permute(0, 1, 5, 3, 2, 4).contiguous()
    if not _in_one_view(shape):
        return phases
    return phases.unfold(5, output[1], 1).permute(0, 1, 5, 2, 3, 4, 6)


def _in_one_view(shape: ConvShape) -> bool:
    """Whether the shifts of all kernel columns make one regular view of the phases."""
    return shape.dilation[1] == 1 and shape.kernel[1] % shape.stride[1] == 0


def unfolder(shape: ConvShape, x: Tensor, output: tuple[int, int], size: int, workspace: Workspace) -> Unfolder:
    """The unfolder for inputs like `x` that give maps of the size `output`."""
    if not shape.channels_last:
        return _ChannelFirst(shape, x, output, size, workspace)
    return (_Gathered if shape.steps == 1 else _Widened)(shape, x, output, size, workspace)


class _ChannelsLast(Unfolder):
    """Padded channels-last blocks; a subclass makes the matrices."""

    def __init__(self, shape: ConvShape, x: Tensor, height: int, size: int) -> None:
        self._size = size
        left, right, top, bottom = shape.padding
        _, c, inner_height, inner_width = x.shape
        own_height = inner_height + top + bottom
        height, width = max(height, own_height), inner_width + left + right
        # Zeros around the block are written once; the loads touch the interior only.
        self._padded: Tensor | None = None
        if (height, width) != (inner_height, inner_width):
            self._padded = torch.zeros((size, height, width, c), device=x.device, dtype=x.dtype)
            if shape.padding_mode == "zeros":
                self._interior = self._padded[:, top : top + inner_height, left : left + inner_width]
            else:
                self._interior = self._padded[:, :own_height]
        self._strides = (height * width * c, width * c, c)

    def _block(self, prepared: Tensor, start: int) -> Tensor:
        block = prepared[start : start + self._size]
        if self._padded is None:
            return block
        self._interior.copy_(block)
        return self._padded


class _Gathered(_ChannelsLast):
    """The full patch matrix, gathered in runs of one kernel row."""

    def __init__(self, shape: ConvShape, x: Tensor, output: tuple[int, int], size: int, workspace: Workspace) -> None:
        super().__init__(shape, x, 0, size)
        image, row, pixel = self._strides
        device = x.device
        examples = torch.arange(size, device=device).view(size, 1, 1, 1) * (image // pixel)
        rows = torch.arange(output[0], device=device).view(-1, 1, 1) * (shape.stride[0] * row // pixel)
        columns = torch.arange(output[1], device=device).view(-1, 1) * shape.stride[1]
        kernel_rows = torch.arange(shape.kernel[0], device=device) * (shape.dilation[0] * row // pixel)
        self._starts = (examples + rows + columns + kernel_rows).view(-1)
        # Overlapping rows, one starting at every pixel: gathering those is a plain copy of runs.
        run = shape.kernel[1] * pixel
        self._runs = ((size * image - run) // pixel + 1, run), (pixel, 1)
        patches = workspace.take("patches", (len(self._starts), run), like=x)
        self._patches, self.matrices = patches, [patches.view(size, output[0] * output[1], shape.columns)]

    def load(self, prepared: Tensor, start: int) -> None:
        torch.index_select(self._block(prepared, start).as_strided(*self._runs), 0, self._starts, out=self._patches)


class _Widened(_ChannelsLast):
    """Only the width unfolded: wide[n, a, r, q, j, c] = x[n, c, r·ph + a, q·pw + j·dw] for stride (ph, pw)."""

    def __init__(self, shape: ConvShape, x: Tensor, output: tuple[int, int], size: int, workspace: Workspace) -> None:
        (kh, kw), (ph, pw), (dh, dw), (oh, ow) = shape.kernel, shape.stride, shape.dilation, output
        rows = shape.rows_per_phase(oh)
        super().__init__(shape, x, rows * ph, size)
        image, row, pixel = self._strides
        self._view = (size, ph, rows, ow, kw, pixel), (image, row, ph * row, pw * pixel, dw * pixel, 1)
        self._wide = workspace.take("patches", self._view[0], like=x)
        by_phase = self._wide.view(size, ph, rows * ow, kw * pixel)
        self.matrices = []
        for i in range(kh):
            shift, phase = divmod(i * dh, ph)
            self.matrices.append(by_phase[:, phase].narrow(1, shift * ow, oh * ow))

    def load(self, prepared: Tensor, start: int) -> None:
        self._wide.copy_(self._block(prepared, start).as_strided(*self._view))


class _ChannelFirst(Unfolder):
    """wide[n, c, j, a, r, q] = x[n, c, r·ph + a, q·pw + j·dw]; and the full matrix from it where a step is narrow."""

    def __init__(self, shape: ConvShape, x: Tensor, output: tuple[int, int], size: int, workspace: Workspace) -> None:
        self._size = size
        c, (kh, kw), ph, (oh, ow) = x.shape[1], shape.kernel, shape.stride[0], output
        rows = shape.rows_per_phase(oh)
        spread = workspace.take("wide", (size, c, kw, ph, rows, ow), like=x)
        pw, dw = shape.stride[1], shape.dilation[1]
        self._shifts: list[tuple[Tensor, int, int]] | None = None
        if _in_one_view(shape):
            self._target = spread.view(size, c, kw // pw, pw, ph, rows, ow)
        else:
            self._shifts = [(spread[:, :, j], j * dw % pw, j * dw // pw) for j in range(kw)]
        wide = spread.view(size * shape.groups, c // shape.groups * kw, ph, rows * ow)
        merged = shape.rows_per_step
        self._copies: list[tuple[Tensor, Tensor]] = []
        if merged == ph and shape.dilation[0] == 1:
            matrix = wide.view(len(wide), -1, rows * ow)
            self.matrices = [matrix.narrow(2, step * ow, oh * ow) for step in range(shape.steps)]
            return
        pieces = []
        for i in range(kh):
            shift, phase = divmod(i * shape.dilation[0], ph)
            pieces.append(wide[:, :, phase].narrow(2, shift * ow, oh * ow))
        if merged == 1:
            self.matrices = pieces
            return
        full = workspace.take("patches", (len(wide), wide.shape[1], kh, oh * ow), like=x)
        self._copies = [(full[:, :, i], piece) for i, piece in enumerate(pieces)]
        self.matrices = [full.view(len(wide), -1, oh * ow)]

    def load(self, prepared: Tensor, start: int) -> None:
        block = prepared[start : start + self._size]
        if self._shifts is None:
            self._target.copy_(block)
        else:
            for target, phase, shift in self._shifts:
                target.copy_(block[:, :, phase].narrow(4, shift, target.shape[4]))
        for target, source in self._copies:
            target.copy_(source)
