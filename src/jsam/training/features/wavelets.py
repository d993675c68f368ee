"""The filters of the scattering transform: Morlet wavelets at two scales and eight angles, and a Gaussian low pass.

A Morlet wavelet is a plane wave under a Gaussian, less as much of the Gaussian as makes its sum zero. Its Fourier
transform is a difference of Gaussians, so the wavelets are written down there and are real. Widths and frequencies are
the usual ones: a wavelet of scale j has the width 0.8 · 2^j along its wave and twice that across, and the frequency
3π/4 · 2^-j; the low pass has the width 1.6. With them a transform never has more energy than its image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SCALES = 2
ANGLES = 8
STRIDE: int = 2**SCALES
"""At every fourth pixel in each direction the low pass is sampled."""

_WIDTH = 0.8
_FREQUENCY = 0.75 * math.pi
_SLANT = 4 / ANGLES  # width along the wave over the width across
_ALIASES = range(-2, 2)  # for frequencies from 0 to 2π; a wavelet's transform is below 1e-13 further out


def wavelets(height: int, width: int, scale: int) -> Tensor:
    """The Fourier transforms of one scale's wavelets on a periodic grid, float64 of shape (ANGLES, height, width)."""
    return torch.stack([_morlet(height, width, scale, math.pi * turn / ANGLES) for turn in range(ANGLES)])


def _morlet(height: int, width: int, scale: int, angle: float) -> Tensor:
    frequency = _FREQUENCY / 2**scale
    wave = _gaussian(height, width, scale, angle, frequency)
    envelope = _gaussian(height, width, scale, angle, 0.0)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def _gaussian(height: int, width: int, scale: int, angle: float, frequency: float) -> Tensor:
    """The transform of a Gaussian times a plane wave of this frequency, sampled at whole pixels.

    Sampling repeats a transform at every multiple of 2π, so its copies are added up.
    """
    along_wave, across = _WIDTH * 2**scale, _WIDTH * 2**scale / _SLANT
    cosine, sine = math.cos(angle), math.sin(angle)
    total = torch.zeros(height, width, dtype=torch.float64)
    for down in _ALIASES:
        for right in _ALIASES:
            y = (_frequencies(height) + 2 * math.pi * down)[:, None]
            x = (_frequencies(width) + 2 * math.pi * right)[None, :]
            distance = (along_wave * (cosine * y + sine * x - frequency)) ** 2 + (across * (cosine * x - sine * y)) ** 2
            total += torch.exp(-distance / 2)
    return total


def _frequencies(size: int) -> Tensor:
    return 2 * math.pi * torch.arange(size, dtype=torch.float64) / size


def low_pass(size: int, *, step: int) -> Tensor:
    """The low pass along one axis, as float64 weights of shape (size / STRIDE, size / step).

    It takes values at every `step`-th of `size` pixels on a periodic line to means around every fourth pixel. Each row
    sums to 1, so that a constant stays what it is.
    """
    distance = torch.arange(0, size, STRIDE)[:, None] - torch.arange(0, size, step)[None, :]
    width = _WIDTH * 2 ** (SCALES - 1)
    weights = sum(torch.exp(-((distance + size * lap).double() ** 2) / (2 * width**2)) for lap in _ALIASES)
    assert isinstance(weights, Tensor)
    return weights / weights.sum(dim=1, keepdim=True)
