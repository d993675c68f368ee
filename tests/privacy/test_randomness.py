"""Noise from a key: standard normal, independent from round to round, the same again, and only with the whole key."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.privacy import KEY_BYTES, keyed_bytes, keyed_normals

KEY = bytes(range(KEY_BYTES))
SIZE = 2**17 + 5  # three blocks, the last of an odd size


def accepted(values: NDArray[np.float64], scale: float) -> bool:
    """Whether mean square and shape are those of N(0, scale²), each tested at one in ten thousand."""
    squares = float((values**2).sum()) / scale**2
    right_scale = 2 * min(scipy.stats.chi2.cdf(squares, values.size), scipy.stats.chi2.sf(squares, values.size)) > 1e-4
    return bool(right_scale and scipy.stats.kstest(values / scale, "norm").pvalue > 1e-4)


@pytest.mark.parametrize("round", [0, 1, 2**40])
def test_draws_are_standard_normal_and_no_other_scale_is_accepted(round: int) -> None:
    draws = keyed_normals(KEY, "noise", SIZE, round=round)
    assert draws.shape == (SIZE,)
    assert accepted(draws, 1.0)
    assert not accepted(draws, 2 / 3)
    assert not accepted(draws, 3 / 2)
    assert np.abs(draws).max() > 4  # the tail is there


def test_rounds_blocks_purposes_and_keys_share_nothing() -> None:
    rows = [keyed_normals(KEY, "noise", 5000, round=index) for index in range(10)]
    rows += [keyed_normals(KEY, "other", 5000, round=0), keyed_normals(bytes(16), "noise", 5000, round=0)]
    whole = keyed_normals(KEY, "noise", 2**17, round=0)
    rows += [whole[2**16 :][:5000], whole[2**15 :][:5000]]
    correlations = np.asarray(np.corrcoef(np.stack(rows)))
    assert np.abs(correlations[np.triu_indices(len(rows), 1)]).max() < 5 / np.sqrt(5000)
    assert abs(float(np.mean(whole[:-1] * whole[1:]))) < 5 / np.sqrt(whole.size)


def test_one_other_bit_of_the_key_gives_other_bytes_throughout() -> None:
    expected = np.frombuffer(keyed_bytes(KEY, "noise", size=4096, round=3), dtype=np.uint8)
    for bit in range(8 * KEY_BYTES):
        other = bytearray(KEY)
        other[bit // 8] ^= 1 << bit % 8
        found = np.frombuffer(keyed_bytes(bytes(other), "noise", size=4096, round=3), dtype=np.uint8)
        assert (found == expected).mean() < 0.02


def test_the_same_key_purpose_and_round_give_the_same_draws() -> None:
    assert np.array_equal(keyed_normals(KEY, "noise", SIZE, round=7), keyed_normals(KEY, "noise", SIZE, round=7))
    # Pinned, so that a run that was stopped can be resumed by a later build of the same version.
    assert keyed_bytes(KEY, "noise", size=8, round=7).hex() == "e1c007abb1cf5590"


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_small_sizes(size: int) -> None:
    assert keyed_normals(KEY, "noise", size, round=0).shape == (size,)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(InputError, match="key has 15 bytes; it must have 16"):
        keyed_normals(KEY[:15], "noise", 4, round=0)
