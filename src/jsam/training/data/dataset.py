"""The one form in which training sees data: arrays of inputs and class labels, split in train and test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jsam.errors import InputError

InputArray = NDArray[np.float32] | NDArray[np.int64]
LabelArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A labelled data set: images as normalised float32 NCHW; other float32 or int64 (token ids) inputs as you like.

    The arrays stay writable, because torch warns about every view of a read-only one; treat them as frozen.
    """

    name: str
    train_inputs: InputArray
    train_targets: LabelArray
    test_inputs: InputArray
    test_targets: LabelArray
    num_classes: int

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise InputError(f"data set {self.name}: num_classes is {self.num_classes}, must be at least 2")
        for part, inputs, targets in (
            ("train", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            _check_part(f"data set {self.name}: {part}", inputs, targets, self.num_classes)
        train_form = (self.train_inputs.shape[1:], self.train_inputs.dtype)
        test_form = (self.test_inputs.shape[1:], self.test_inputs.dtype)
        if train_form != test_form:
            raise InputError(
                f"data set {self.name}: train samples are {train_form[1]} {train_form[0]} but test samples are "
                f"{test_form[1]} {test_form[0]}; they must be alike"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def num_train(self) -> int:
        return len(self.train_targets)

    @property
    def num_test(self) -> int:
        return len(self.test_targets)


def dataset_from_arrays(
    name: str,
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    test_inputs: ArrayLike | None = None,
    test_targets: ArrayLike | None = None,
    test_share: float = 0.2,
    num_classes: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Your own data set from arrays; without test arrays, `test_share` of the samples is set aside by `seed`.

    Whole numbers become int64 (token ids), everything else float32. Normalise with public constants: a mean taken from
    the clients' records would be a release that no contract pays for.

    >>> import numpy as np
    >>> rng = np.random.default_rng(7)
    >>> labels = rng.integers(0, 3, size=300)
    >>> points = rng.normal(size=(300, 2)) + 4.0 * labels[:, None]
    >>> mine = dataset_from_arrays("three-clouds", points, labels)
    >>> mine.num_train, mine.num_test, mine.num_classes, mine.input_shape
    (240, 60, 3, (2,))
    >>> from jsam.training.partition import partition
    >>> partition(mine.train_targets, num_clients=6, scheme="similarity", similarity=50, seed=1).sizes
    (40, 40, 40, 40, 40, 40)
    """
    all_inputs, all_targets = _as_inputs(name, inputs), _as_targets(name, targets)
    if (test_inputs is None) != (test_targets is None):
        raise InputError(f"data set {name}: give both test_inputs and test_targets, or neither")
    if test_inputs is not None and test_targets is not None:
        train = (all_inputs, all_targets)
        test = (_as_inputs(name, test_inputs), _as_targets(name, test_targets))
    else:
        if not 0.0 < test_share < 1.0:
            raise InputError(f"data set {name}: test_share is {test_share}, must lie strictly between 0 and 1")
        if len(all_inputs) != len(all_targets):
            raise InputError(f"data set {name}: {len(all_inputs)} inputs but {len(all_targets)} targets")
        order = np.random.default_rng(seed).permutation(len(all_targets))
        num_test = round(test_share * len(order))
        kept, aside = np.sort(order[num_test:]), np.sort(order[:num_test])
        train = (all_inputs[kept], all_targets[kept])
        test = (all_inputs[aside], all_targets[aside])
    if num_classes is None:
        num_classes = int(max(t.max(initial=0) for t in (train[1], test[1]))) + 1
    return Dataset(
        name=name,
        train_inputs=train[0],
        train_targets=train[1],
        test_inputs=test[0],
        test_targets=test[1],
        num_classes=num_classes,
    )


def _check_part(what: str, inputs: InputArray, targets: LabelArray, num_classes: int) -> None:
    if inputs.dtype not in (np.dtype(np.float32), np.dtype(np.int64)):
        raise InputError(f"{what} inputs are {inputs.dtype}, must be float32 (or int64 for token ids)")
    if targets.dtype != np.dtype(np.int64) or targets.ndim != 1:
        raise InputError(f"{what} targets are {targets.dtype} of shape {targets.shape}, must be a row of int64 labels")
    if inputs.ndim < 2 or len(inputs) != len(targets):
        raise InputError(f"{what} inputs have shape {inputs.shape}, must be ({len(targets)}, ...): one row a target")
    if len(targets) == 0:
        raise InputError(f"{what} is empty, must hold at least one sample")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        raise InputError(f"{what} targets reach from {low} to {high}, must lie in 0 to {num_classes - 1}")
    # min and max carry a NaN or an infinity through without a boolean copy of the whole array.
    if inputs.size == 0 or not (np.isfinite(inputs.min()) and np.isfinite(inputs.max())):
        raise InputError(f"{what} inputs hold NaN, infinite or no values; every value must be a finite number")


def _as_inputs(name: str, values: ArrayLike) -> InputArray:
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return np.ascontiguousarray(array, dtype=np.int64)
    if array.dtype.kind != "f":
        raise InputError(f"data set {name}: inputs are {array.dtype}, must be numbers")
    return np.ascontiguousarray(array, dtype=np.float32)


def _as_targets(name: str, values: ArrayLike) -> LabelArray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InputError(f"data set {name}: targets are {array.dtype}, must be whole numbers from 0")
    return np.ascontiguousarray(array, dtype=np.int64)
