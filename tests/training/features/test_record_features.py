"""Features of a record use that record alone, and their bytes do not depend on how they were computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jsam.errors import InputError
from tests.conftest import require

torch = require("torch", extra="train")

from jsam.training.environment import threads_set_to  # noqa: E402
from jsam.training.features import ScatteringFeatures, ScatteringTransform, blocks  # noqa: E402

VARIANTS = {
    "plain": (ScatteringFeatures(), 324),
    "pooled": (ScatteringFeatures(pool=1), 81),
    "projected": (ScatteringFeatures(projection=50, projection_seed=3), 50),
    "both": (ScatteringFeatures(groups=9, pool=1, projection=20), 20),
}
PARAMETERS = pytest.mark.parametrize(("features", "size"), VARIANTS.values(), ids=VARIANTS)


def images(count: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(4).normal(size=(count, *(shape or (1, 8, 8)))).astype(np.float32)


@PARAMETERS
def test_rows_have_the_stated_size_and_norm_one(features: ScatteringFeatures, size: int) -> None:
    rows = features.compute(images(70))
    assert rows.shape == (70, size)
    assert rows.dtype == np.float32
    assert features.size((1, 8, 8)) == size
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


@PARAMETERS
@pytest.mark.parametrize("changed", [0, 63, 64, 129])
def test_one_record_changes_no_other_records_features(features: ScatteringFeatures, size: int, changed: int) -> None:
    """It costs no privacy: data that differ in one record have features that differ in one row, to the bit."""
    before = images(130)
    after = before.copy()
    after[changed] *= -1e6
    others = np.arange(130) != changed
    rows, again = features.compute(before), features.compute(after)
    assert rows[others].tobytes() == again[others].tobytes()
    assert rows[changed].tobytes() != again[changed].tobytes()


def test_bytes_do_not_depend_on_how_many_records_follow_or_on_threads() -> None:
    features, given = ScatteringFeatures(), images(200, 1, 12, 12)
    whole = features.compute(given)
    for count in (1, 7, 63, 64, 65, 128, 199):
        assert features.compute(given[:count]).tobytes() == whole[:count].tobytes()
    for threads in (1, 3):
        with threads_set_to(threads):
            assert features.compute(given).tobytes() == whole.tobytes()


def test_any_size_of_blocks_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    features, given = ScatteringFeatures(), images(75, 3, 8, 8)
    whole = features.compute(given)
    for size in (1, 10, 75):
        monkeypatch.setitem(blocks._RECORDS, "cpu", size)
        np.testing.assert_allclose(features.compute(given), whole, rtol=1e-4, atol=1e-6)


def test_large_images_are_computed_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    transform = ScatteringTransform.__call__

    def watched(self: Any, block: Any) -> Any:
        seen.append(len(block))
        return transform(self, block)

    monkeypatch.setattr(ScatteringTransform, "__call__", watched)
    needed = ScatteringTransform((1, 16, 16), torch.device("cpu")).bytes_a_record
    monkeypatch.setattr(blocks, "MOST_BYTES", 3 * needed)
    ScatteringFeatures().compute(images(7, 1, 16, 16))
    assert seen == [3, 3, 3]


def test_groups_are_normalised_before_the_row_is() -> None:
    # Loud, so that the small constant that keeps a group without contrast finite does not count.
    rows = ScatteringFeatures(groups=9).compute(100 * images(5)).reshape(5, 9, -1)
    np.testing.assert_allclose(rows.mean(axis=2), 0, atol=1e-6)
    deviations = rows.std(axis=2)
    np.testing.assert_allclose(deviations / deviations[:, :1], 1, rtol=0.01)


def test_brightness_and_contrast_of_a_record_do_not_matter() -> None:
    given = 100 * images(3, 1, 28, 28)
    rows = ScatteringFeatures(groups=81).compute(given)
    np.testing.assert_allclose(ScatteringFeatures(groups=81).compute(3 * given + 50), rows, atol=2e-4)


def test_a_record_without_contrast_is_finite() -> None:
    rows = ScatteringFeatures().compute(np.zeros((1, 1, 8, 8), dtype=np.float32))
    assert np.isfinite(rows).all()


def test_a_projection_follows_from_its_seed_alone() -> None:
    given = images(3)
    first = ScatteringFeatures(projection=10, projection_seed=1).compute(given)
    torch.rand(17)
    assert ScatteringFeatures(projection=10, projection_seed=1).compute(given).tobytes() == first.tobytes()
    assert not np.allclose(ScatteringFeatures(projection=10, projection_seed=2).compute(given), first, atol=0.1)


def test_progress_counts_every_record_once() -> None:
    heard: list[tuple[int, int]] = []
    ScatteringFeatures().compute(images(150), progress=lambda done, total: heard.append((done, total)))
    assert heard == [(64, 150), (128, 150), (150, 150)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": 10}, "must divide the 81 channels"),
        ({"groups": 0}, "must divide"),
        ({"pool": 0}, "pool is 0"),
        ({"projection": 0}, "projection is 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ScatteringFeatures(**options)


def test_pooling_to_more_places_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="has 2x2 places only"):
        ScatteringFeatures(pool=3).compute(images(1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_card_gives_the_same_numbers() -> None:
    features, given = ScatteringFeatures(pool=3, projection=50), images(300, 1, 28, 28)
    np.testing.assert_allclose(features.compute(given, device="cuda"), features.compute(given), rtol=1e-3, atol=1e-5)
