"""The scattering transform is what its definition says, never adds energy, and hardly notices a small move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jsam.errors import InputError
from tests.conftest import require
from tests.oracles.scattering import scattered

torch = require("torch", extra="train")

from jsam.training.features import ScatteringTransform  # noqa: E402
from jsam.training.features.wavelets import wavelets  # noqa: E402


def transform(images: Any) -> Any:
    return ScatteringTransform(tuple(images.shape[1:]), images.device)(images)


def noise(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (12, 8)])
def test_it_is_the_sums_over_pixels_of_its_definition(shape: tuple[int, int]) -> None:
    images = noise(2, 2, *shape)
    result = transform(images).numpy().reshape(2, 2, 81, shape[0] // 4, shape[1] // 4)
    for image in range(2):
        for plane in range(2):
            expected = scattered(images[image, plane].double().numpy())
            np.testing.assert_allclose(result[image, plane], expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "expected"), [((1, 28, 28), (81, 7, 7)), ((3, 32, 32), (243, 8, 8)), ((1, 8, 8), (81, 2, 2))]
)
def test_the_shapes_of_the_usual_data_sets(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = noise(2, *shape)
    assert transform(images).shape == (2, *expected)
    assert ScatteringTransform(shape, images.device).output_shape == expected


@pytest.mark.parametrize("shape", [(16, 16), (36, 36), (40, 24)])
def test_no_frequency_is_amplified(shape: tuple[int, int]) -> None:
    """The Littlewood-Paley sum of a real image: the squared low pass, and half of each wavelet at ω and at -ω."""
    height, width = shape
    squares = torch.stack([(wavelets(height, width, scale) ** 2).sum(dim=0) for scale in range(2)]).sum(dim=0).numpy()
    mirrored = np.roll(squares[::-1, ::-1], (1, 1), axis=(0, 1))
    y, x = np.meshgrid(2 * np.pi * np.fft.fftfreq(height), 2 * np.pi * np.fft.fftfreq(width), indexing="ij")
    total = np.exp(-(1.6**2) * (y**2 + x**2)) + (squares + mirrored) / 2
    assert total.max() <= 1 + 1e-9
    assert total.min() > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_energy_does_not_grow(seed: int) -> None:
    images = noise(4, 1, 28, 28, seed=seed)
    images[1] = images[1].sign()
    images[2] = 0.0
    images[2, :, 10:18, 3:20] = 1.0
    mirrored = torch.nn.functional.pad(images, (4, 4, 4, 4), mode="reflect")
    # A value in the result stands for 4 x 4 pixels.
    after = 16 * (transform(images) ** 2).sum(dim=(1, 2, 3))
    assert bool((after <= (mirrored**2).sum(dim=(1, 2, 3)) * (1 + 1e-4)).all())


def test_of_a_constant_only_its_mean_is_left() -> None:
    result = transform(torch.full((1, 1, 28, 28), -0.42))
    np.testing.assert_allclose(result[:, 0], -0.42, rtol=1e-5)
    assert float(result[:, 1:].abs().max()) < 1e-6


def test_a_move_by_a_pixel_changes_it_less_than_the_picture() -> None:
    picture = torch.zeros(1, 1, 28, 28)
    picture[:, :, 8:20, 12:15] = 1.0
    picture[:, :, 8:11, 9:19] = 1.0
    moved = torch.roll(picture, 1, dims=3)

    def change(before: Any, after: Any) -> float:
        return float((after - before).norm() / before.norm())

    assert change(transform(picture), transform(moved)) < 0.5 * change(picture, moved)


@pytest.mark.parametrize("shape", [(1, 30, 28), (1, 4, 4), (28, 28)])
def test_other_shapes_are_refused_with_what_to_do(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="multiples of 4 from 8: crop or pad them"):
        ScatteringTransform(shape, torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_card_agrees_with_the_cpu() -> None:
    images = noise(5, 3, 32, 32)
    np.testing.assert_allclose(transform(images.cuda()).cpu(), transform(images), rtol=1e-3, atol=1e-5)
