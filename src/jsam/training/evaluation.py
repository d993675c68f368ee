"""How good a model is on test data, which belong to no client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jsam.training.clipping import PerSampleLoss

_CHUNK = 2000


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracies are shares from 0 to 1; a class that the test set lacks has None."""

    accuracy: float
    loss: float
    class_accuracy: tuple[float | None, ...]


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor, *, num_classes: int, loss: PerSampleLoss) -> Evaluation:
    """Accuracy, mean loss, and accuracy by class, with the model in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        right = torch.zeros(num_classes, dtype=torch.int64, device=targets.device)
        total = 0.0
        for start in range(0, len(targets), _CHUNK):
            x, y = inputs[start : start + _CHUNK], targets[start : start + _CHUNK]
            outputs = model(x)
            total += float(loss(outputs, y).sum(dtype=torch.float64))
            right += torch.bincount(y[outputs.argmax(dim=1) == y], minlength=num_classes)
    finally:
        model.train(was_training)
    counts = torch.bincount(targets, minlength=num_classes).tolist()
    hits = right.tolist()
    return Evaluation(
        accuracy=sum(hits) / len(targets),
        loss=total / len(targets),
        class_accuracy=tuple(hit / count if count else None for hit, count in zip(hits, counts, strict=True)),
    )
