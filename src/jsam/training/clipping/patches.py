"""Convolution inputs unfolded along the width only, so that patch matrices are views instead of copies.

A full patch matrix repeats every input kernel-height times. Here the rows are split by stride phase and the width is
unfolded; then, for one kernel row, the patches of all output positions lie a constant stride apart, and the matrix
product can read them in place. With few channels the layout is channel first, where the runs to copy are rows of the
map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from jsam.training.clipping.workspace import Workspace

# Floats to copy in one go, and columns of a product, below which speed falls off.
_SHORTEST_FAST_RUN = 16
_FEWEST_FAST_COLUMNS = 16


@dataclass(frozen=True, kw_only=True)
class ConvShape:
    """The geometry of one Conv2d, and the order in which its weight gradient is computed."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    padding_mode: str
    channels: int
    groups: int

    @classmethod
    def of(cls, module: nn.Conv2d) -> ConvShape:
        left, right, top, bottom = module._reversed_padding_repeated_twice
        return cls(
            kernel=_pair(module.kernel_size),
            stride=_pair(module.stride),
            dilation=_pair(module.dilation),
            padding=(left, right, top, bottom),
            padding_mode=module.padding_mode,
            channels=module.in_channels,
            groups=module.groups,
        )

    @property
    def channels_last(self) -> bool:
        """Whether a step's columns are (kernel row, column, channel); otherwise (channel, kernel column, row)."""
        contiguous_run = self.kernel[1] * self.channels if self.dilation[1] == 1 else self.channels
        # Channel first, the patches of a group are a contiguous piece of the matrix.
        return self.groups == 1 and contiguous_run >= _SHORTEST_FAST_RUN

    @property
    def rows_per_step(self) -> int:
        """Kernel rows that one product covers: few products of many columns, as far as no more need be copied."""
        kernel, stride = self.kernel[0], self.stride[0]
        if self.channels_last:
            # A stride this long repeats an input row at most twice, and one long product beats several short ones.
            return kernel if kernel <= 2 * stride and self.dilation[1] == 1 else 1
        rows = stride if self.dilation[0] == 1 and kernel % stride == 0 else 1
        narrow = self.channels // self.groups * self.kernel[1] * rows < _FEWEST_FAST_COLUMNS
        return kernel if narrow else rows

    @property
    def steps(self) -> int:
        return self.kernel[0] // self.rows_per_step

    @property
    def columns(self) -> int:
        """Weight entries of one output channel in one step."""
        return self.channels // self.groups * self.kernel[1] * self.rows_per_step

    def rows_per_phase(self, output_height: int) -> int:
        """Padded input rows of one stride phase that the products read."""
        return (self.kernel[0] - 1) * self.dilation[0] // self.stride[0] + output_height

    def scratch(self, output: tuple[int, int]) -> int:
        """Floats that unfolding one example takes."""
        full = self.kernel[0] * output[0] if self.steps == 1 else 0
        rows = full + (0 if full and self.channels_last else self.rows_per_phase(output[0]) * self.stride[0])
        return self.channels * self.kernel[1] * rows * output[1]

    def to_weight(self, total: Tensor) -> Tensor:
        """From (step, output channel, columns) to the weight's own shape."""
        (kh, kw), rows, out = self.kernel, self.rows_per_step, total.shape[1]
        if self.channels_last:
            split = total.view(self.steps, out, rows, kw, self.channels)
            return split.permute(1, 4, 0, 2, 3).reshape(out, self.channels, kh, kw)
        split = total.view(self.steps, out, -1, kw, rows)
        return split.permute(1, 2, 0, 4, 3).reshape(out, -1, kh, kw)

    def from_weight(self, weight: Tensor) -> Tensor:
        """The inverse of `to_weight`."""
        out = weight.shape[0]
        if self.channels_last:
            split = weight.reshape(out, self.channels, self.steps, self.rows_per_step, self.kernel[1])
            return split.permute(2, 0, 3, 4, 1).reshape(self.steps, out, self.columns)
        split = weight.reshape(out, -1, self.steps, self.rows_per_step, self.kernel[1])
        return split.permute(2, 0, 1, 4, 3).reshape(self.steps, out, self.columns)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def pad(x: Tensor, shape: ConvShape) -> Tensor:
    """The input as the convolution sees it, borders included."""
    if not any(shape.padding):
        return x
    mode = "constant" if shape.padding_mode == "zeros" else shape.padding_mode
    return functional.pad(x, list(shape.padding), mode=mode)


def unfold(x: Tensor, shape: ConvShape, output: tuple[int, int], workspace: Workspace) -> list[Tensor]:
    """The patch matrices (n × groups, positions, columns), one a step; valid until the next unfolding."""
    x = pad(x, shape)
    lay_out = _channels_last if shape.channels_last else _channel_first
    return lay_out(x, shape, output, workspace)


def _fit(x: Tensor, height: int, width: int) -> Tensor:
    """Cut, or padded by what no product reads, to whole strides."""
    below, right = height - x.shape[2], width - x.shape[3]
    if below > 0 or right > 0:
        x = functional.pad(x, [0, max(right, 0), 0, max(below, 0)])
    return x[:, :, :height, :width]


def _channels_last(x: Tensor, shape: ConvShape, output: tuple[int, int], workspace: Workspace) -> list[Tensor]:
    rows = shape.rows_per_phase(output[0])
    if shape.steps == 1:
        return [_gathered(x.permute(0, 2, 3, 1).contiguous(), shape, output, workspace)]
    x = _fit(x, rows * shape.stride[0], x.shape[3]).permute(0, 2, 3, 1)
    if x.stride(3) != 1:
        x = x.contiguous()
    n, _, _, c = x.shape
    sn, sh, sw, _ = x.stride()
    (kh, kw), (ph, pw), (dh, dw), (oh, ow) = shape.kernel, shape.stride, shape.dilation, output
    # wide[n, a, r, q, j, c] = x[n, c, r * ph + a, q * pw + j * dw]
    size = (n, ph, rows, ow, kw, c)
    wide = workspace.take("wide", size, like=x)
    wide.copy_(x.as_strided(size, (sn, sh, ph * sh, pw * sw, dw * sw, 1)))
    matrices = wide.view(n, ph, rows * ow, kw * c)
    found = []
    for i in range(kh):
        shift, phase = divmod(i * dh, ph)
        found.append(matrices[:, phase].narrow(1, shift * ow, oh * ow))
    return found


def _gathered(x: Tensor, shape: ConvShape, output: tuple[int, int], workspace: Workspace) -> Tensor:
    n, height, width, c = x.shape
    run = shape.kernel[1] * c
    # Overlapping rows, one starting at every pixel: gathering those is a plain copy of runs.
    runs = x.view(-1).as_strided((n * height * width - shape.kernel[1] + 1, run), (c, 1))
    index = _run_starts(n, height, width, shape, output, x.device)
    patches = workspace.take("wide", (len(index), run), like=x)
    torch.index_select(runs, 0, index, out=patches)
    return patches.view(n, output[0] * output[1], shape.columns)


@lru_cache(maxsize=64)
def _run_starts(
    n: int, height: int, width: int, shape: ConvShape, output: tuple[int, int], device: torch.device
) -> Tensor:
    """Pixels at which the kernel rows of all patches start: (example, output row, output column, kernel row)."""
    examples = torch.arange(n, device=device).view(n, 1, 1, 1) * (height * width)
    rows = torch.arange(output[0], device=device).view(-1, 1, 1) * (shape.stride[0] * width)
    columns = torch.arange(output[1], device=device).view(-1, 1) * shape.stride[1]
    kernel_rows = torch.arange(shape.kernel[0], device=device) * (shape.dilation[0] * width)
    return (examples + rows + columns + kernel_rows).view(-1)


def _channel_first(x: Tensor, shape: ConvShape, output: tuple[int, int], workspace: Workspace) -> list[Tensor]:
    kw, (ph, pw), dw, ow = shape.kernel[1], shape.stride, shape.dilation[1], output[1]
    rows, columns = shape.rows_per_phase(output[0]), (kw - 1) * dw // pw + ow
    x = _fit(x, rows * ph, columns * pw)
    n, c = x.shape[:2]
    # phases[n, c, b, a, r, q] = x[n, c, r * ph + a, q * pw + b]: strided reads once, contiguous ones afterwards.
    split = torch.unflatten(torch.unflatten(x, 3, (columns, pw)), 2, (rows, ph)).permute(0, 1, 5, 3, 2, 4)
    phases = split
    if split.stride(5) != 1:
        phases = workspace.take("phases", tuple(split.shape), like=x).copy_(split)
    # wide[n, c, j, a, r, q] = x[n, c, r * ph + a, q * pw + j * dw]
    wide = workspace.take("wide", (n, c, kw, ph, rows, ow), like=x)
    if dw == 1 and kw % pw == 0:
        windows = phases.unfold(5, ow, 1).narrow(5, 0, kw // pw)
        wide.view(n, c, kw // pw, pw, ph, rows, ow).copy_(windows.permute(0, 1, 5, 2, 3, 4, 6))
    else:
        for j in range(kw):
            shift, phase = divmod(j * dw, pw)
            wide[:, :, j].copy_(phases[:, :, phase].narrow(4, shift, ow))
    return _steps(wide.view(n * shape.groups, c // shape.groups * kw, ph, rows * ow), shape, output, workspace)


def _steps(wide: Tensor, shape: ConvShape, output: tuple[int, int], workspace: Workspace) -> list[Tensor]:
    n, columns, phases, _ = wide.shape
    oh, ow = output
    merged = shape.rows_per_step
    if merged == phases and shape.dilation[0] == 1:
        matrix = wide.view(n, columns * phases, -1)
        return [matrix.narrow(2, step * ow, oh * ow).transpose(1, 2) for step in range(shape.steps)]
    found = []
    for i in range(shape.kernel[0]):
        shift, phase = divmod(i * shape.dilation[0], phases)
        found.append(wide[:, :, phase].narrow(2, shift * ow, oh * ow).transpose(1, 2))
    if merged == 1:
        return found
    full = workspace.take("full", (n, columns, merged, oh * ow), like=wide)
    for i, piece in enumerate(found):
        full[:, :, i].copy_(piece.transpose(1, 2))
    return [full.view(n, columns * merged, oh * ow).transpose(1, 2)]
