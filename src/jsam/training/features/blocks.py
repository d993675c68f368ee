"""Records in blocks of one size: memory has a bound, and a row's bytes do not depend on how many rows there are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jsam.training.clipping.precision import arithmetic
from jsam.training.environment import threads_set_to

MOST_BYTES = 1 << 30
"""What a block that is computed may use."""
_RECORDS = {"cpu": 64, "cuda": 2048}


def in_blocks(
    function: Callable[[Tensor], Tensor],
    records: NDArray[np.float32],
    *,
    width: int,
    bytes_a_record: int,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """Rows of `width` numbers, as `function` makes them of records on the device; `progress` hears how many are done.

    All blocks have one size, which follows from records and device alone: libraries round differently in batches of
    another size. The last block is filled up with zeros. A CPU computes with one thread: the tensors of a block are
    small, and torch's threads waited for each other longer than they computed.
    """
    total = len(records)
    size = max(1, min(_RECORDS[device.type], MOST_BYTES // bytes_a_record))
    result = np.empty((total, width), dtype=np.float32)
    block = torch.empty((size, *records.shape[1:]), device=device)
    with threads_set_to(1), torch.no_grad(), arithmetic("fp32", device):
        for start in range(0, total, size):
            some = records[start : start + size]
            block[: len(some)] = torch.from_numpy(some).to(device)
            block[len(some) :] = 0
            result[start : start + len(some)] = function(block)[: len(some)].cpu().numpy()
            if progress is not None:
                progress(start + len(some), total)
    return result
