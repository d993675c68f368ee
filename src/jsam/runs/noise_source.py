"""Where the noise of a run comes from: a secret key of its own, or a seed that anybody may know."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jsam.privacy import KEY_BYTES, derived_seed, generator, keyed_bytes, keyed_normals
from jsam.runs.noise_key import create_key, key_check, read_key
from jsam.runs.run_folder import RunFolder
from jsam.runs.settings import TrainingSettings


class NoiseSource(Protocol):
    """Where standard normal draws come from; the same source and round give the same draws."""

    def normals(self, size: int, index: int) -> NDArray[np.floating]:
        """`size` independent draws of N(0, 1) for round `index`."""

    def device_seed(self, index: int) -> int:
        """The seed of a CUDA device's own generator in round `index`."""

    def label_normals(self, size: int) -> NDArray[np.float64]:
        """`size` independent draws of N(0, 1) for label counts, from a stream that no round has."""


@dataclass(frozen=True)
class SecretNoise:
    """Noise from a secret key. Without the key nobody can compute it, however much of it is known."""

    key: bytes = field(repr=False)

    @classmethod
    def fresh(cls) -> SecretNoise:
        """With a key from the operating system, which is forgotten with this object."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def normals(self, size: int, index: int) -> NDArray[np.floating]:
        return keyed_normals(self.key, "noise", size, round=index)

    def device_seed(self, index: int) -> int:
        # All the bits that torch's CUDA generator (Philox) takes.
        return int.from_bytes(keyed_bytes(self.key, "noise on a device", size=8, round=index), "little")

    def label_normals(self, size: int) -> NDArray[np.float64]:
        return keyed_normals(self.key, "noise on label counts", size, round=0)


@dataclass(frozen=True)
class SeededNoise:
    """Noise that anybody who knows the seed can compute and take off: for experiments that are to be repeated."""

    seed: int

    def normals(self, size: int, index: int) -> NDArray[np.floating]:
        return generator(self.seed, "noise", round=index).standard_normal(size, dtype=np.float32)

    def device_seed(self, index: int) -> int:
        return derived_seed(self.seed, "noise", round=index)

    def label_normals(self, size: int) -> NDArray[np.float64]:
        return generator(self.seed, "noise on label counts").standard_normal(size)


def noise_of_trial(settings: TrainingSettings) -> NoiseSource:
    """For a run that is not resumed: its key is in no file."""
    return SecretNoise.fresh() if settings.noise_seed is None else SeededNoise(settings.noise_seed)


def new_noise(settings: TrainingSettings, folder: RunFolder) -> tuple[NoiseSource, str | None]:
    """For a new run, with what its config shall hold of the key."""
    if settings.noise_seed is not None:
        return SeededNoise(settings.noise_seed), None
    key = create_key(folder.noise_key)
    return SecretNoise(key), key_check(key)


def kept_noise(settings: TrainingSettings, folder: RunFolder, config: Mapping[str, Any]) -> NoiseSource:
    """For a run that goes on: the very source that it began with."""
    if settings.noise_seed is not None:
        return SeededNoise(settings.noise_seed)
    return SecretNoise(read_key(folder.noise_key, config.get("noise_key_check")))
