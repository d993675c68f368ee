"""What is learned from whom: a data set, dealt out to clients, and a model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jsam.errors import InputError
from jsam.privacy import derived_seed, generator
from jsam.training.data import Dataset, load_dataset, load_writers
from jsam.training.partition import Partition, Scheme, partition, sizes_by_law

if TYPE_CHECKING:
    from torch import nn

    from jsam.training.clipping import PerSampleLoss
    from jsam.training.features.record_features import Counted

_SAMPLED_ROWS = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Data, partition and a freshly initialised model, which training changes in place.

    `loss` maps (outputs, targets) to one loss an example; None is cross entropy. A task made from a `TaskSpec` can be
    rebuilt by `jsam resume`; one of your own is handed to `resume` again.
    """

    dataset: Dataset
    partition: Partition
    model: nn.Module
    loss: PerSampleLoss | None = None
    spec: TaskSpec | None = None

    def __post_init__(self) -> None:
        if self.partition.num_samples != self.dataset.num_train:
            raise InputError(
                f"the partition deals out {self.partition.num_samples} samples; data set {self.dataset.name} has "
                f"{self.dataset.num_train} to train on"
            )

    @property
    def num_parameters(self) -> int:
        """D: how many numbers are learned, and so noised."""
        return num_parameters(self.model)

    @property
    def weights_norm(self) -> float:
        """The Euclidean norm of what is learned, before training."""
        return weights_norm(self.model)

    def fingerprint(self) -> dict[str, Any]:
        """Enough to notice other data, another partition or another model; not a checksum of every pixel."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(np.ascontiguousarray(self.dataset.train_targets).tobytes())
        step = max(1, self.dataset.num_train // _SAMPLED_ROWS)
        digest.update(np.ascontiguousarray(self.dataset.train_inputs[::step]).tobytes())
        for held in self.partition.indices:
            digest.update(np.ascontiguousarray(held).tobytes() + b"|")
        for name, value in self.model.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return {
            "dataset": self.dataset.name,
            "partition": self.partition.description,
            "num_clients": self.partition.num_clients,
            "num_samples": sum(self.partition.sizes),
            "parameters": self.num_parameters,
            "digest": digest.hexdigest(),
            "samples": list(self.partition.sizes),
        }


def num_parameters(model: nn.Module) -> int:
    """How many numbers of a model are learned."""
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def weights_norm(model: nn.Module) -> float:
    """The Euclidean norm of all that is learned, as one vector."""
    learned = (value.detach().double() for value in model.parameters() if value.requires_grad)
    return math.sqrt(math.fsum(float(value.pow(2).sum()) for value in learned))


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task by names and numbers, so that a stored run can rebuild it.

    `sizes` says how many samples each client gets: a number for each, a law such as "lognormal:1" or "zipf:1.2", or
    "equal", as where it is left out.
    """

    dataset: str = "mnist"
    model: str | None = None
    num_clients: int = 100
    scheme: Scheme = "similarity"
    similarity: float | None = None
    blocks: bool = False
    alpha: float | None = None
    min_size: int | None = None
    sizes: str | tuple[int, ...] | None = None
    seed: int = 0

    def build(
        self,
        folder: Path | str | None = None,
        *,
        dataset: Dataset | None = None,
        device: str = "cpu",
        progress: Counted | None = None,
    ) -> Task:
        """Load, deal out and initialise; the same spec gives the same task.

        `dataset` is given where that data set is loaded already. A model on features has them computed on `device` or
        read from the cache; `progress` hears how many records are done, and how many there are.
        """
        from jsam.training.features import with_features
        from jsam.training.models import FEATURES, build_model

        dataset = dataset or load_dataset(self.dataset, folder)
        split = self.split(dataset, folder)
        name = self.model or self.dataset
        if name in FEATURES:
            dataset = with_features(dataset, FEATURES[name], device=device, progress=progress)
        seed, shape = derived_seed(self.seed, "model"), dataset.input_shape
        model = build_model(name, seed, shape=shape, num_classes=dataset.num_classes)
        _check_fit(name, model, dataset)
        return Task(dataset=dataset, partition=split, model=model, spec=self)

    def split(self, dataset: Dataset, folder: Path | str | None = None) -> Partition:
        if self.scheme == "writer" and dataset.name != "mnist":
            raise InputError(f"scheme 'writer' is for mnist, whose writers are known; the data set is {dataset.name}")
        similarity = 100.0 if self.scheme == "similarity" and self.similarity is None else self.similarity
        return partition(
            dataset.train_targets,
            num_clients=self.num_clients,
            scheme=self.scheme,
            seed=self.seed,
            similarity=similarity,
            blocks=self.blocks,
            alpha=self.alpha,
            min_size=self.min_size,
            writers=load_writers(folder).train_writers if self.scheme == "writer" else None,
            sizes=self._sizes(dataset.num_train),
        )

    def _sizes(self, num_samples: int) -> tuple[int, ...] | None:
        if not isinstance(self.sizes, str):
            return self.sizes
        return sizes_by_law(self.sizes, self.num_clients, num_samples, generator(self.seed, "sizes"))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TaskSpec:
        sizes = stored.get("sizes")
        try:
            return cls(**{**stored, "sizes": tuple(sizes) if isinstance(sizes, list) else sizes})
        except TypeError as error:
            raise InputError(f"the stored task does not match this version's: {error}") from error


def _check_fit(name: str, model: nn.Module, dataset: Dataset) -> None:
    """Before a folder is made: one example of the data goes through the model and comes out as one score a class."""
    import torch

    shape = dataset.train_inputs.shape[1:]
    try:
        with torch.no_grad():
            scores = model(torch.zeros(1, *shape)).shape[1]
    except RuntimeError as error:
        size = "x".join(map(str, shape))
        raise InputError(
            f"model {name!r} does not take the {size} examples of data set {dataset.name}; leave --model out"
        ) from error
    if scores != dataset.num_classes:
        raise InputError(
            f"model {name!r} tells {scores} classes apart; data set {dataset.name} has {dataset.num_classes}"
        )
