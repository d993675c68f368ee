"""The engine a training loop talks to: checks, the choice of path, and the warning when it is the slow one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from jsam.errors import InputError
from jsam.training.clipping.capture import PerSampleLoss, sample_losses
from jsam.training.clipping.chunking import spans
from jsam.training.clipping.fused import FusedClipping
from jsam.training.clipping.inspection import (
    draws_at_random,
    is_stateless,
    obstacle,
    refuse_mixing,
    trainable_owners,
)
from jsam.training.clipping.layers import CannotFuseError
from jsam.training.clipping.layers.base import row_norms
from jsam.training.clipping.per_sample import one_by_one, trainable, vectorised
from jsam.training.clipping.precision import Precision, arithmetic, checked_precision, denormals_flushed
from jsam.training.clipping.result import ClippedSum
from jsam.training.clipping.sums import Factors, RunningSum
from jsam.training.clipping.weights import refuse_range
from jsam.training.clipping.workspace import Workspace

Path = Literal["fused", "vectorised", "one by one"]

_PROBE_SAMPLES = 3
# What sets a wrong result apart from a rounded one; mistakes in kind are of the order of 1.
_PROBE_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "tf32": 0.1, "bf16": 0.3}
_PER_SAMPLE_BYTES = 64 << 20
_MOST_WORKERS = 16


class SlowPathWarning(UserWarning):
    """A model is clipped by per-sample gradients, because the fused path does not cover it."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per-example cross entropy, the default loss."""
    return functional.cross_entropy(outputs, targets, reduction="none")


class ClippingEngine:
    """Weighted sums of per-example gradients, each clipped to one L2 norm over all trainable parameters.

    `path` names how gradients are computed, and `reason` why it is not "fused". The model's first batch is also used
    for a check against gradients taken one example at a time, which catches what types alone do not show: parameters
    used outside their module, and examples that influence each other. A model with Conv2d is put into channels-last
    memory format on the CPU (values and shapes stay the same). Dropout draws from torch's global generator.

    `chunk_size` bounds the examples in flight, and with them the memory. `workers` threads share the chunks on the CPU,
    one torch thread each; "auto" takes torch.get_num_threads() of them for models of torch's own modules with the
    default loss, and one for others, whose forward pass might keep state. The result depends on their number only by
    rounding. On CUDA `precision` names the arithmetic of the forward and backward pass (fp32, tf32, or bf16: see
    jsam.training.clipping.precision).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clip_norm: float,
        loss: PerSampleLoss = cross_entropy,
        chunk_size: int | Literal["auto"] = "auto",
        workers: int | Literal["auto"] = "auto",
        precision: Precision = "fp32",
    ) -> None:
        if not (math.isfinite(clip_norm) and clip_norm > 0):
            raise InputError(f"clip_norm is {clip_norm}; it must be a positive finite number")
        if chunk_size != "auto" and chunk_size < 1:
            raise InputError(f"chunk_size is {chunk_size}; it must be 'auto' or at least 1")
        if workers != "auto" and workers < 1:
            raise InputError(f"workers is {workers}; it must be 'auto' or at least 1")
        parameters = trainable(model)
        if not parameters:
            raise InputError("the model has no trainable parameter; at least one must have requires_grad=True")
        for name, value in parameters.items():
            if value.dtype not in (torch.float32, torch.float64):
                raise InputError(f"parameter {name} is {value.dtype}; norms need float32 or float64")
        refuse_mixing(model)
        self.model, self.clip_norm, self.loss = model, float(clip_norm), loss
        self.path: Path = "fused"
        self.reason: str | None = None
        self._chunk_size = None if chunk_size == "auto" else chunk_size
        self._parameter_count = sum(value.numel() for value in parameters.values())
        self._checked = False
        device = next(iter(parameters.values())).device
        self.precision = checked_precision(precision, device)
        owners = trainable_owners(model)
        reason = obstacle(owners)
        if reason is not None:
            self._leave_fused(reason)
            return
        on_cpu = device.type == "cpu"
        # cuDNN's plain fp32 kernels want channel first, its tensor cores channels last.
        channels_last = _gains_by_channels_last(model) if on_cpu else precision != "fp32" and _has_convolutions(model)
        if channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        safe = on_cpu and loss is cross_entropy and is_stateless(model)
        count = min(_MOST_WORKERS, torch.get_num_threads()) if safe else 1
        self._fused = FusedClipping(
            model,
            owners,
            loss=loss,
            channels_last=channels_last,
            workers=count if workers == "auto" else workers,
            precision=self.precision,
        )

    @property
    def parameter_count(self) -> int:
        """Length of the flat gradient."""
        return self._parameter_count

    def clipped_sum(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> ClippedSum:
        """Σ_i weights_i · clip(gradient of example i) in fp64, with norms and losses of all examples.

        Example i moves the sum by at most |weights_i| · C, rounding included, whatever it and the others are, on a
        CPU and on CUDA at every precision, as long as Σ|weights| is at most 2²⁴ times the least of them. One whose
        gradient is not finite counts as nothing; its norm is then infinite, and no work is done differently for it.
        """
        n = inputs.shape[0] if inputs.dim() else 0
        if n < 1:
            raise InputError("inputs has no examples; at least one is needed")
        if targets.shape[:1] != (n,):
            raise InputError(f"targets has shape {tuple(targets.shape)}; its first dimension must be {n}, as in inputs")
        if weights.shape != (n,):
            raise InputError(f"weights has shape {tuple(weights.shape)}; it must be ({n},), one weight an example")
        refuse_mixing(self.model)
        refuse_range(weights)
        weights = weights.to(next(iter(trainable(self.model).values())))
        self._check_once(inputs, targets)
        if self.path == "fused":
            try:
                return self._fused.clipped_sum(
                    inputs,
                    targets,
                    weights,
                    clip_norm=self.clip_norm,
                    chunk_size=self._chunk_size,
                    parallel=not draws_at_random(self.model),
                )
            except CannotFuseError as error:
                self._leave_fused(str(error))
        return self._per_sample_sum(inputs, targets, weights)

    def unflatten(self, gradient: Tensor) -> dict[str, Tensor]:
        """Views of a flat gradient by parameter name."""
        parameters = trainable(self.model)
        pieces = torch.split(gradient, [value.numel() for value in parameters.values()])
        return {name: piece.view(value.shape) for (name, value), piece in zip(parameters.items(), pieces, strict=True)}

    def _leave_fused(self, reason: str) -> None:
        self.path, self.reason = "vectorised", reason
        warnings.warn(
            f"per-sample gradients instead of the fused path (right, but slower and with more memory): {reason}",
            SlowPathWarning,
            stacklevel=3,
        )

    def _per_sample_sum(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> ClippedSum:
        size = self._chunk_size or max(1, _PER_SAMPLE_BYTES // (4 * self._parameter_count))
        total, workspace = RunningSum(self._parameter_count, weights.device), Workspace()
        norms, losses = [], []
        for start, stop in spans(inputs.shape[0], size):
            with denormals_flushed(inputs.device):
                with arithmetic(self.precision, inputs.device):
                    gradients, values = self._per_sample_gradients(inputs[start:stop], targets[start:stop])
                found = row_norms(gradients)
                total.add_rows(gradients, Factors.of(found, weights[start:stop].double(), self.clip_norm), workspace)
            norms.append(torch.nan_to_num(found, nan=torch.inf, posinf=torch.inf).to(weights.dtype))
            losses.append(values)
        gradient = total.value()
        return ClippedSum(gradient=gradient, norms=torch.cat(norms), losses=torch.cat(losses), clip_norm=self.clip_norm)

    def _per_sample_gradients(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.path == "vectorised":
            try:
                return vectorised(self.model, self.loss)(inputs, targets)
            except RuntimeError as error:
                # vmap has no rule for some operations and forbids data-dependent control flow.
                self.path, self.reason = "one by one", f"{self.reason}; torch.func: {str(error).splitlines()[0]}"
        return one_by_one(self.model, self.loss)(inputs, targets)

    def _check_once(self, inputs: Tensor, targets: Tensor) -> None:
        if self._checked:
            return
        inputs, targets = inputs[:_PROBE_SAMPLES], targets[:_PROBE_SAMPLES]
        # A lone example shows nothing about mixing: look again at the next batch.
        self._checked = inputs.shape[0] > 1
        with _undisturbed(self.model, inputs.device), arithmetic("fp32", inputs.device):
            with torch.no_grad():
                together, again = (sample_losses(self.model, inputs, targets, self.loss) for _ in range(2))
            if not torch.equal(together, again):
                # Random beyond Dropout: nothing to compare with, but shapes still tell.
                self._compare(inputs, targets, None)
                return
            gradients, alone = one_by_one(self.model, self.loss)(inputs, targets)
            if not torch.allclose(together, alone, rtol=_PROBE_TOLERANCE["fp32"], atol=1e-5):
                raise InputError(
                    f"the loss of an example is {float(alone[0]):g} alone and {float(together[0]):g} in a batch: the "
                    "model mixes samples, so no gradient belongs to one example"
                )
            self._compare(inputs, targets, gradients)

    def _compare(self, inputs: Tensor, targets: Tensor, gradients: Tensor | None) -> None:
        if self.path != "fused":
            return
        weights = torch.arange(1.0, inputs.shape[0] + 1.0).to(next(iter(trainable(self.model).values())))
        try:
            fused = self._fused.clipped_sum(inputs, targets, weights, clip_norm=math.inf)
        except CannotFuseError as error:
            self._leave_fused(str(error))
            return
        if gradients is None:
            return
        expected, norms = weights @ gradients, torch.linalg.vector_norm(gradients, dim=1)
        tolerance = _PROBE_TOLERANCE[self.precision]
        far = torch.linalg.vector_norm(fused.gradient - expected) > tolerance * (weights * norms).sum()
        if far or not torch.allclose(fused.norms, norms, rtol=tolerance, atol=1e-7):
            self._leave_fused(
                "a parameter is used outside the module that owns it (found by a check on the first batch)"
            )


def _has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _gains_by_channels_last(model: nn.Module) -> bool:
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    # oneDNN crashes in channels-last where some output sees nothing but padding (torch 2.13, kernel 1, padding 1).
    odd = any(
        isinstance(module.padding, tuple)
        and any(pad >= kernel for pad, kernel in zip(module.padding, module.kernel_size, strict=True))
        for module in convolutions
    )
    return bool(convolutions) and not odd


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Dropout off, then generators and buffers as before: a check must not change what a run computes."""
    saved = {name: value.clone() for name, value in model.named_buffers()}
    dropouts = [module for module in model.modules() if isinstance(module, _DropoutNd) and module.training]
    for module in dropouts:
        module.training = False
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            for module in dropouts:
                module.training = True
            with torch.no_grad():
                for name, value in model.named_buffers():
                    value.copy_(saved[name])
