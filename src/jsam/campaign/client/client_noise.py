"""Noise for a release that leaves the machine: every bit from the operating system's entropy, never from a seed.

A generator that is merely seeded from there could be wound back by whoever sees enough of its output. This is quick
enough: half a million numbers take some tens of milliseconds.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.privacy.randomness import normals_from


def fresh_noise(std: float, size: int) -> NDArray[np.float64]:
    """`size` independent draws of N(0, std²) in fp64, the scale rounded up; only the noisy sum is rounded to fp32."""
    if not (np.isfinite(std) and std >= 0):
        raise InputError(f"std is {std:g}; it must be finite and at least 0")
    scale = np.float32(std)
    if scale < std:
        scale = np.nextafter(scale, np.float32(np.inf))
    pairs = (size + 1) // 2
    draws = normals_from(os.urandom(2 * pairs * 8))[:size]
    return np.asarray(draws * np.float64(scale))
