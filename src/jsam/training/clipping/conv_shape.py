"""The geometry of a convolution as a sum of matrix products over kernel rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

# Floats to copy in one go, and columns of a product, below which speed falls off.
_SHORTEST_FAST_RUN = 16
_FEWEST_FAST_COLUMNS = 16


@dataclass(frozen=True, kw_only=True)
class ConvShape:
    """The geometry of one Conv2d, and the steps in which its weight gradient is computed."""

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

    def columns_per_phase(self, output_width: int) -> int:
        return (self.kernel[1] - 1) * self.dilation[1] // self.stride[1] + output_width

    def scratch(self, output: tuple[int, int]) -> int:
        """Floats that unfolding one example takes, roughly."""
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
