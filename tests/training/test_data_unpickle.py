"""The restricted unpickler reads arrays and runs nothing."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.errors import UnsafePickleError
from jsam.training.data.unpickle import load_arrays


class Evil:
    """Unpickled by the ordinary reader, this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def _load(content: bytes, limit: int = 1 << 20) -> Any:
    return load_arrays(io.BytesIO(content), limit_bytes=limit, what="test.pkl")


def _python2_pickle(array: np.ndarray[Any, Any]) -> bytes:
    """An array as Python 2 pickled it: protocol 2, names of numpy's old modules, contents as a byte string."""
    content = bytes(array.tobytes())
    code = str(array.dtype.str)[1:].encode()
    shape = b"(" + b"".join(b"J" + n.to_bytes(4, "little") for n in array.shape) + b"t"
    item_type = (
        b"cnumpy\ndtype\nU"
        + bytes([len(code)])
        + code
        + b"K\0K\1\x87R(K\3U\1<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R"
    return (
        b"\x80\2"
        + made
        + b"(K\1"
        + shape
        + item_type
        + b"\x89T"
        + len(content).to_bytes(4, "little")
        + content
        + b"tb."
    )


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_arrays_pickled_by_python_2_come_back_bit_by_bit(kind: type) -> None:
    array: np.ndarray[Any, Any] = np.arange(12).reshape(3, 4).astype(kind)
    content = _python2_pickle(array)
    assert np.array_equal(pickle.loads(content, encoding="latin1"), array), "the hand-made pickle must be a real one"
    loaded = _load(content)
    assert loaded.dtype == array.dtype
    assert np.array_equal(loaded, array)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps((Evil(mark),))
    with pytest.raises(UnsafePickleError, match=r"test.pkl: refused.*is not allowed"):
        _load(content)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists(), "the pickle must really be harmful, or this test shows nothing"


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nfromfile\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cnumpy\nndarray.__reduce__\n.",
        b"\x80\4\x8c\5numpy\x8c\7ndarray\x93.",
        b"]K\1a.",
        b"I1\n.",
        b"(dp0\nS'a'\nI1\ns.",
        b"Ppersistent\n.",
        b"\x82\1.",
        b"not a pickle",
        b"",
    ],
    ids=lambda content: repr(content)[:40],
)
def test_everything_but_plain_arrays_is_refused(content: bytes) -> None:
    with pytest.raises(UnsafePickleError, match="refused"):
        _load(content)


def test_object_arrays_and_lying_shapes_are_refused() -> None:
    with pytest.raises(UnsafePickleError):
        _load(pickle.dumps(np.array([{}, []], dtype=object), protocol=2))
    honest = _python2_pickle(np.zeros((3, 4), dtype=np.float32))
    lying = honest.replace(b"J\3\0\0\0J\4\0\0\0", b"J\3\0\0\0J\5\0\0\0")
    assert lying != honest
    with pytest.raises(UnsafePickleError, match="does not fit"):
        _load(lying)


def test_a_small_file_that_unpacks_to_a_huge_one_is_stopped() -> None:
    bomb = gzip.compress(_python2_pickle(np.zeros(1 << 20, dtype=np.float32)))
    assert len(bomb) < 1 << 14
    with gzip.open(io.BytesIO(bomb)) as stream, pytest.raises(UnsafePickleError, match="larger than expected"):
        load_arrays(stream, limit_bytes=1 << 20, what="bomb.pkl.gz")
