"""The scattering transform of one small plane, slowly: wavelets sampled at pixels, and sums over all shifts.

Everything is written down in space and in float64; no Fourier transform is taken.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float64]
_LAPS = (-2, -1, 0, 1, 2)


def _bump(shape: tuple[int, int], width: float, slant: float, angle: float, frequency: float) -> NDArray[np.complex128]:
    """A plane wave under a Gaussian of sum 1, on a grid that is periodic."""
    total = np.zeros(shape, dtype=np.complex128)
    for row in range(shape[0]):
        for column in range(shape[1]):
            for down in _LAPS:
                for right in _LAPS:
                    y, x = row + down * shape[0], column + right * shape[1]
                    along = y * math.cos(angle) + x * math.sin(angle)
                    across = x * math.cos(angle) - y * math.sin(angle)
                    height = math.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
                    total[row, column] += height * np.exp(1j * frequency * along)
    total *= slant / (2 * math.pi * width**2)
    return total


def _wavelet(shape: tuple[int, int], scale: int, turn: int) -> NDArray[np.complex128]:
    width, angle, frequency = 0.8 * 2**scale, math.pi * turn / 8, 0.75 * math.pi / 2**scale
    wave, envelope = _bump(shape, width, 0.5, angle, frequency), _bump(shape, width, 0.5, angle, 0.0)
    envelope *= wave.sum() / envelope.sum()
    return wave - envelope


def _convolved(plane: Plane, kernel: NDArray[np.complex128]) -> NDArray[np.complex128]:
    total = np.zeros(plane.shape, dtype=np.complex128)
    for row in range(plane.shape[0]):
        for column in range(plane.shape[1]):
            total += kernel[row, column] * np.roll(plane, (row, column), axis=(0, 1))
    return total


def _local_mean(plane: Plane, step: int) -> Plane:
    """Means under a Gaussian of width 1.6 pixels, around every fourth; `plane` has every `step`-th pixel only."""
    kernel = _bump(plane.shape, 1.6 / step, 1.0, 0.0, 0.0).real
    means = _convolved(plane, (kernel / kernel.sum()).astype(np.complex128)).real
    return np.asarray(means[:: 4 // step, :: 4 // step][1:-1, 1:-1])


def scattered(plane: Plane) -> Plane:
    """The 81 channels of a plane: order 0, order 1 by scale and angle, order 2 by first and second angle."""
    mirrored = np.pad(plane, 4, mode="reflect")
    fine = [_wavelet(mirrored.shape, 0, turn) for turn in range(8)]
    coarse = [_wavelet(mirrored.shape, 1, turn) for turn in range(8)]

    def halved(values: Plane) -> list[Plane]:
        return [_local_mean(np.abs(_convolved(values, kernel))[::2, ::2], 2) for kernel in coarse]

    moduli = [np.abs(_convolved(mirrored, kernel)) for kernel in fine]
    second = [channel for modulus in moduli for channel in halved(modulus)]
    return np.stack(
        [_local_mean(mirrored, 1), *(_local_mean(modulus, 1) for modulus in moduli), *halved(mirrored), *second]
    )
