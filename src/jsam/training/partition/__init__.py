"""Deal a training set out to clients, and look at the result."""

from __future__ import annotations

from jsam.training.partition.plot import partition_picture
from jsam.training.partition.result import Partition
from jsam.training.partition.schemes import SCHEMES, Scheme, partition
from jsam.training.partition.sizes import EQUAL, apportioned, is_law, sizes_by_law

__all__ = [
    "EQUAL",
    "SCHEMES",
    "Partition",
    "Scheme",
    "apportioned",
    "is_law",
    "partition",
    "partition_picture",
    "sizes_by_law",
]
