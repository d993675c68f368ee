"""The two-layer scattering transform: local means of an image, of its wavelets' moduli, and of those moduli's own.

Of each plane of an image come 81 channels: its local mean (order 0), those of |x * ψ| for 2 · 8 wavelets (order 1), and
those of ||x * ψ| * ψ'| for the 8 · 8 pairs of a wavelet of scale 0 and one of scale 1 (order 2). They change little
when a picture moves by a pixel or is bent a bit, and nothing in them is learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from jsam.errors import InputError
from jsam.training.features.wavelets import ANGLES, SCALES, STRIDE, low_pass, wavelets

CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
"""Of each plane: 81."""

_PAD = STRIDE
_SMALLEST = 2 * STRIDE
_FLOATS_A_PIXEL = 64
"""More than are held at a time for a padded pixel: a plane, its spectrum, and 8 complex products, responses, moduli."""


class ScatteringTransform:
    """The transform for images of one shape on one device, in fp32.

    An image is mirrored by four pixels at its borders, and those are cut off again in the result.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        if len(shape) != 3 or any(size % STRIDE or size < _SMALLEST for size in shape[1:]):
            words = "x".join(map(str, shape))
            raise InputError(
                f"records are {words}; a scattering transform takes images of channels x height x width, with a height "
                f"and a width that are multiples of {STRIDE} from {_SMALLEST}: crop or pad them"
            )
        self.shape = shape
        self._padded = height, width = shape[1] + 2 * _PAD, shape[2] + 2 * _PAD
        # A factor on real and imaginary part alike; so it is never widened to a complex number.
        fine, coarse = (wavelets(height, width, scale).float()[..., None].to(device) for scale in range(SCALES))
        self._fine = fine
        # Keeping every second pixel adds up the four quarters of a spectrum.
        self._quarters = [
            (rows, columns, (coarse[:, rows, columns] / 4).contiguous())
            for rows in (slice(0, height // 2), slice(height // 2, height))
            for columns in (slice(0, width // 2), slice(width // 2, width))
        ]
        self._means = {
            step: tuple(low_pass(size, step=step)[1:-1].float().to(device) for size in self._padded) for step in (1, 2)
        }

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one record's result."""
        channels, height, width = self.shape
        return channels * CHANNELS, height // STRIDE, width // STRIDE

    @property
    def bytes_a_record(self) -> int:
        """How much memory a record needs at most while it is transformed."""
        return 4 * _FLOATS_A_PIXEL * self.shape[0] * self._padded[0] * self._padded[1]

    def __call__(self, images: Tensor) -> Tensor:
        """Transform images (n, channels, height, width) to (n, channels · 81, height / 4, width / 4)."""
        planes: Tensor = functional.pad(images, (_PAD,) * 4, mode="reflect").flatten(0, 1)
        spectrum = torch.fft.fft2(planes)
        fine = self._fine_moduli(spectrum)
        parts = [self._mean(planes, step=1)[:, None], self._mean(fine, step=1), self._coarse_means(spectrum)]
        # One angle at a time is small enough for a processor's cache.
        parts += [self._coarse_means(torch.fft.fft2(fine[:, angle])) for angle in range(ANGLES)]
        return torch.cat(parts, dim=1).reshape(len(images), *self.output_shape)

    def _fine_moduli(self, spectrum: Tensor) -> Tensor:
        """|x * ψ| at every pixel for the wavelets of scale 0, from the spectrum of x."""
        product = torch.view_as_real(spectrum)[:, None] * self._fine
        moduli: Tensor = torch.fft.ifft2(torch.view_as_complex(product)).abs()
        return moduli

    def _coarse_means(self, spectrum: Tensor) -> Tensor:
        """The means of |x * ψ| at every second pixel for the wavelets of scale 1, from the spectrum of x."""
        parts = torch.view_as_real(spectrum)[:, None]
        rows, columns, factor = self._quarters[0]
        product = parts[:, :, rows, columns] * factor
        for rows, columns, factor in self._quarters[1:]:
            product.addcmul_(parts[:, :, rows, columns], factor)
        return self._mean(torch.fft.ifft2(torch.view_as_complex(product)).abs(), step=2)

    def _mean(self, values: Tensor, *, step: int) -> Tensor:
        down, right = self._means[step]
        return down @ (values @ right.T)
