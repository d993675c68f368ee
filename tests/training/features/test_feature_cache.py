"""Features are computed once; a file that is not as it was written is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.errors import InputError
from tests.conftest import require

require("torch", extra="train")

from jsam.training.data import Dataset, dataset_from_arrays  # noqa: E402
from jsam.training.features import ScatteringFeatures, with_features  # noqa: E402

FEATURES = ScatteringFeatures(pool=1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jsam" / "features"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each computation had."""
    counts: list[int] = []
    compute = ScatteringFeatures.compute

    def counted(self: ScatteringFeatures, images: Any, **options: Any) -> Any:
        counts.append(len(images))
        return compute(self, images, **options)

    monkeypatch.setattr(ScatteringFeatures, "compute", counted)
    return counts


def pictures(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return dataset_from_arrays("pictures", rng.normal(size=(50, 1, 8, 8)), rng.integers(0, 3, size=50))


def stored(folder: Path) -> Path:
    (path,) = folder.glob("*.f32")
    return path


def test_train_and_test_records_get_their_own_features_and_labels_stay(folder: Path) -> None:
    data = pictures()
    featured = with_features(data, FEATURES)
    np.testing.assert_allclose(featured.train_inputs, FEATURES.compute(data.train_inputs), atol=1e-6)  # type: ignore[arg-type]
    np.testing.assert_allclose(featured.test_inputs, FEATURES.compute(data.test_inputs), atol=1e-6)  # type: ignore[arg-type]
    assert featured.train_targets is data.train_targets
    assert featured.name == data.name


def test_the_second_time_they_are_read(folder: Path, computed: list[int]) -> None:
    first, again = with_features(pictures(), FEATURES), with_features(pictures(), FEATURES)
    assert computed == [50]
    assert first.train_inputs.tobytes() == again.train_inputs.tobytes()
    assert first.test_inputs.tobytes() == again.test_inputs.tobytes()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def lose_the_checksum(path: Path) -> None:
    path.with_suffix(".sha256").unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_a_bit, cut, lose_the_checksum, empty, Path.unlink])
def test_what_does_not_fit_is_computed_again_and_kept(folder: Path, computed: list[int], damage: Any) -> None:
    first = with_features(pictures(), FEATURES)
    damage(stored(folder))
    assert with_features(pictures(), FEATURES).train_inputs.tobytes() == first.train_inputs.tobytes()
    with_features(pictures(), FEATURES)
    assert computed == [50, 50]


def test_other_records_and_other_features_have_files_of_their_own(folder: Path, computed: list[int]) -> None:
    changed = pictures()
    changed.test_inputs[3, 0, 2, 2] += 1
    for data, features in ((pictures(), FEATURES), (changed, FEATURES), (pictures(), ScatteringFeatures(groups=9))):
        with_features(data, features)
    assert computed == [50, 50, 50]
    assert len(list(folder.glob("*.f32"))) == 3


def test_a_cache_that_cannot_be_written_is_no_error(folder: Path, computed: list[int]) -> None:
    folder.parent.mkdir()
    folder.write_text("a file in the folder's place")
    assert with_features(pictures(), FEATURES).num_train == 40
    assert computed == [50]


def test_token_ids_are_no_pictures(folder: Path) -> None:
    words = dataset_from_arrays("words", np.ones((9, 5), dtype=np.int64), np.arange(9) % 2)
    with pytest.raises(InputError, match="features are made of pictures"):
        with_features(words, FEATURES)
