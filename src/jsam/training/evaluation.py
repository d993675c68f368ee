"""How good a model is on test data, which belong to no client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jsam.training.clipping import PerSampleLoss
from jsam.training.clipping.gpu import runs_kernels
from jsam.training.clipping.gpu.forward import merged
from jsam.training.clipping.isolation import copied
from jsam.training.clipping.precision import Precision, arithmetic, forward_precision
from jsam.training.clipping.rowwise import chain_of

_CHUNK = 2000


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracies are shares from 0 to 1; a class that the test set lacks has None."""

    accuracy: float
    loss: float
    class_accuracy: tuple[float | None, ...]


def evaluate(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    num_classes: int,
    loss: PerSampleLoss,
    precision: Precision = "fp32",
) -> Evaluation:
    """Accuracy, mean loss, and accuracy by class, with the model in evaluation mode."""
    evaluator = Evaluator(inputs, targets, num_classes=num_classes, loss=loss, precision=precision)
    evaluator.run(model)
    return Evaluator.read(evaluator.result.cpu())


class Evaluator:
    """Evaluates on the device, so that it can be queued and read later; `read` makes sense of `result`."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        num_classes: int,
        loss: PerSampleLoss,
        precision: Precision = "fp32",
        chunk: int = _CHUNK,
    ) -> None:
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._precision, self._chunk = precision, chunk
        self._classes = torch.arange(num_classes, device=targets.device)
        counts = (targets[:, None] == self._classes).sum(dim=0)
        # A row of hits by class, a row of sizes, and the summed loss in the last column.
        self.result = torch.zeros((2, num_classes + 1), dtype=torch.float64, device=targets.device)
        self.result[1, :num_classes] = counts

    @torch.no_grad()
    def run(self, model: nn.Module) -> None:
        """Queue an evaluation of the weights as they are then."""
        forward = merged(model, forward_precision(self._precision)) if runs_kernels(self.result.device) else None
        precision = self._precision if forward is None else forward_precision(self._precision)
        if chain_of(model) is None:  # where a forward pass might write something it writes it to a copy
            model = copied(model)
        hits, total = torch.zeros_like(self.result[0, :-1]), torch.zeros_like(self.result[0, -1])
        was_training = model.training
        model.eval()
        try:
            with arithmetic(precision, self.result.device):
                for start in range(0, len(self._targets), self._chunk):
                    x, y = self._inputs[start : start + self._chunk], self._targets[start : start + self._chunk]
                    # Nobody takes gradients here, so nothing is recorded.
                    outputs = model(x) if forward is None else forward(x, lambda module, inputs, output: None)
                    outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
                    right = outputs.argmax(dim=1) == y
                    hits += (right[:, None] & (y[:, None] == self._classes)).sum(dim=0)
                    total += self._loss(outputs, y).sum(dtype=torch.float64)
        finally:
            model.train(was_training)
        self.result[0, :-1] = hits
        self.result[0, -1] = total

    @staticmethod
    def read(result: Tensor) -> Evaluation:
        """The evaluation that a copy of `result` in the host's memory holds."""
        hits, counts = result[0, :-1].tolist(), result[1, :-1].tolist()
        return Evaluation(
            accuracy=sum(hits) / sum(counts),
            loss=float(result[0, -1]) / sum(counts),
            class_accuracy=tuple(hit / count if count else None for hit, count in zip(hits, counts, strict=True)),
        )
