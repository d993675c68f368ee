"""Deal a training set out to clients, and look at the result."""

from __future__ import annotations

from jsam.training.partition.plot import partition_picture
from jsam.training.partition.result import Partition
from jsam.training.partition.schemes import SCHEMES, Scheme, partition

__all__ = ["SCHEMES", "Partition", "Scheme", "partition", "partition_picture"]
