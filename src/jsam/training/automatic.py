"""Weights of the loss bound that follow from the task: how much noise counts, and how much clients differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jsam.mechanism.heterogeneity import CLASSES, spread
from jsam.runs.noise_weight import NoiseWeight
from jsam.runs.settings import TrainingSettings
from jsam.training.data import Dataset
from jsam.training.partition import Partition
from jsam.training.task import TaskSpec


@dataclass(frozen=True, kw_only=True)
class TaskWeights:
    """What is known of a task before training, for the weights of the loss bound."""

    noise: NoiseWeight
    known_heterogeneity: str  # as the data were dealt out
    measured_heterogeneity: float  # from the labels

    @classmethod
    def of(
        cls, spec: TaskSpec, split: Partition, data: Dataset, settings: TrainingSettings, *, num_parameters: int
    ) -> TaskWeights:
        samples = float(np.mean(split.sizes))
        return cls(
            noise=NoiseWeight.of(settings, num_parameters=num_parameters, samples=samples),
            known_heterogeneity=known_heterogeneity(spec, classes=data.num_classes, samples=round(samples)),
            measured_heterogeneity=measured_heterogeneity(split, data),
        )


def known_heterogeneity(spec: TaskSpec, *, classes: int, samples: int) -> str:
    """ζ² by the way in which the data are dealt out, as `Rules.heterogeneity` takes it; no label is looked at.

    Writers are taken to be alike: all write the same digits, each in a hand of its own.
    """
    if spec.scheme == "dirichlet":
        return f"dirichlet:{spec.alpha}/{classes}/{samples}"
    percent = 100.0 if spec.scheme != "similarity" or spec.similarity is None else spec.similarity
    if percent == 100:
        return f"alike:{samples}/{classes}"
    if classes == CLASSES and not spec.blocks:
        return f"similarity:{percent:g}/{samples}"
    # The rest are two pieces of one class each, or one sorted block, which is of one class where clients are many.
    apart = np.clip((1 if spec.blocks else 2) - np.arange(classes), 0, 1)
    shares = percent / 100 / classes + (1 - percent / 100) * apart / apart.sum()
    return f"{spread(shares, np.full(classes, 1 / classes), samples):.6g}"


def measured_heterogeneity(split: Partition, data: Dataset) -> float:
    """ζ² as the labels have it: the mean over clients of (1 + χ²)/M. Only a simulation may look at them."""
    counts = split.label_counts(data.train_targets, data.num_classes)
    records = counts.sum(axis=1)
    return spread(counts / records[:, None], counts.sum(axis=0) / counts.sum(), records)
