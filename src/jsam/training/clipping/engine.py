"""The engine a training loop talks to: checks, the choice of path, and the warning when it is the slow one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from jsam.errors import InputError
from jsam.training.clipping.capture import PerSampleLoss, cross_entropy, watched_losses
from jsam.training.clipping.chunking import spans
from jsam.training.clipping.clipped_sum import ClippedSum
from jsam.training.clipping.example_weights import refuse_range
from jsam.training.clipping.fused import FusedClipping
from jsam.training.clipping.isolation import copied
from jsam.training.clipping.layers import CannotFuseError
from jsam.training.clipping.layers.layer_rule import row_norms
from jsam.training.clipping.model_checks import (
    draws_at_random,
    obstacle,
    one_line,
    refuse_changes,
    refuse_hooks,
    refuse_mixing,
    trainable_owners,
)
from jsam.training.clipping.precision import Precision, arithmetic, checked_precision, denormals_flushed
from jsam.training.clipping.rowwise import chain_of, is_rowwise
from jsam.training.clipping.sample_gradients import StandIn, generators_kept, one_by_one, trainable, vectorised
from jsam.training.clipping.sums import Factors, RunningSum
from jsam.training.clipping.unfailing import Trace
from jsam.training.clipping.workspace import Workspace

Path = Literal["fused", "vectorised", "one by one"]

_PROBE_SAMPLES = 3
# What sets a wrong result apart from a rounded one; mistakes in kind are of the order of 1.
_PROBE_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "tf32": 0.1, "bf16": 0.3}
_PER_SAMPLE_BYTES = 64 << 20
_MOST_WORKERS = 16


class SlowPathWarning(UserWarning):
    """A model is clipped by per-sample gradients, because the fused path does not cover it."""


class ClippingEngine:
    """Weighted sums of per-example gradients, each clipped to one L2 norm over all trainable parameters.

    `path` names how gradients are computed, and `reason` why it is not "fused". On every path an example's gradient
    depends on no other example, by construction (docs/decisions/0016): a batch goes through the model at once only if
    all modules are known to treat its rows apart, else the model and the loss see one example at a time, and what a
    forward pass writes is thrown away. The first batch is also held against gradients taken one example at a time, to
    choose the path and to refuse with a reason what makes no sense there. A model with Conv2d is put into channels-last
    memory format on the CPU (values and shapes stay the same). Dropout draws from torch's global generator.

    `chunk_size` bounds the examples in flight, and with them the memory. `workers` threads share the chunks on the CPU,
    one torch thread each; "auto" takes torch.get_num_threads() of them for models that are known, with the default
    loss, and one for others, which never get more. The result depends on their number only by rounding. On CUDA
    `precision` names the arithmetic of the forward and backward pass (fp32, tf32, or bf16: see
    jsam.training.clipping.precision).

    With `skip_failing` an example at which the model fails counts as nothing instead of failing the sum, and no more
    work is done for it than for others. A batch then goes through together only where no values can make that fail
    (jsam.training.clipping.unfailing). The first example of the first batch must not fail.
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
        skip_failing: bool = False,
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
        self._skip_failing = skip_failing
        self._stand_in: StandIn | None = None
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
        known = chain_of(model) is not None
        count = min(_MOST_WORKERS, torch.get_num_threads()) if on_cpu and known and loss is cross_entropy else 1
        self._fused = FusedClipping(
            model,
            owners,
            loss=loss,
            channels_last=channels_last,
            workers=count if workers == "auto" or not known else workers,
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
        self.check(inputs, targets)
        if self.path == "fused":
            try:
                return self._fused.clipped_sum(
                    inputs,
                    targets,
                    weights,
                    clip_norm=self.clip_norm,
                    chunk_size=self._chunk_size,
                    parallel=is_rowwise(self.model, inputs.dim()) and not draws_at_random(self.model),
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
                raw_norms = row_norms(gradients)
                total.add_rows(
                    gradients, Factors.of(raw_norms, weights[start:stop].double(), self.clip_norm), workspace
                )
            norms.append(torch.nan_to_num(raw_norms, nan=torch.inf, posinf=torch.inf).to(weights.dtype))
            losses.append(values)
        gradient = total.value()
        return ClippedSum(gradient=gradient, norms=torch.cat(norms), losses=torch.cat(losses), clip_norm=self.clip_norm)

    def _per_sample_gradients(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.path == "vectorised":
            return vectorised(self.model, self.loss)(inputs, targets)
        return one_by_one(self.model, self.loss, self._stand_in)(inputs, targets)

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """On the first batch: refuse what makes no sense, and choose the path. Later batches change neither.

        Nothing here keeps examples apart; a model that is fooled into acting well now is run no other way than it is.
        """
        if self._checked:
            return
        inputs, targets = inputs[:_PROBE_SAMPLES], targets[:_PROBE_SAMPLES]
        with _undisturbed(self.model, inputs.device), arithmetic("fp32", inputs.device):
            gradients, losses = self._alone(inputs, targets)
            _, again = self._alone(inputs, targets)
            repeats = torch.equal(losses, again)
            if not is_rowwise(self.model, inputs.dim()) or self.loss is not cross_entropy:
                for x, y in zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True):
                    refuse_changes(self.model, partial(watched_losses, inputs=x, targets=y, loss=self.loss))
                if repeats:
                    self._refuse_seen_mixing(inputs, targets, losses)
            if self.path == "fused":
                self._compare(inputs, targets, gradients if repeats else None)
            if self.path == "vectorised":
                self._try_vectorised(inputs, targets)
        if self._skip_failing:
            self._prepare_to_skip(inputs, targets)
        if self.path == "one by one" and not is_rowwise(self.model, inputs.dim()):
            refuse_hooks(self.model)
        self._checked = True

    def run_one_by_one(self, reason: str) -> None:
        """From now on examples go through the model one after another; InputError if it has hooks."""
        refuse_hooks(self.model)
        self.path, self.reason = "one by one", reason
        warnings.warn(f"one example after another (right, but slower): {reason}", SlowPathWarning, stacklevel=3)

    def _prepare_to_skip(self, inputs: Tensor, targets: Tensor) -> None:
        self._stand_in = StandIn(self.model, self.loss, inputs[:1], targets[:1])
        known = is_rowwise(self.model, inputs.dim()) and self.loss is cross_entropy
        if known or self.path == "one by one":
            return
        trace = Trace(self.loss)
        # With Dropout on: what a round runs is looked at.
        with generators_kept(inputs.device), arithmetic(self.precision, inputs.device):
            try:
                if self.path == "fused":
                    self._fused.traced(trace, inputs, targets)
                else:
                    with trace:
                        vectorised(self.model, trace.loss)(inputs, targets)
                unsure = trace.unsure
            except Exception as error:  # noqa: BLE001 - whatever it is, one by one it goes
                unsure = one_line(error)
        if unsure is not None:
            self.run_one_by_one(f"the values of an example may make it fail ({unsure})")

    def _alone(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return one_by_one(self.model, self.loss)(inputs, targets)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the model, or its loss, fails for a single example: {one_line(error)}") from error

    def _refuse_seen_mixing(self, inputs: Tensor, targets: Tensor, alone: Tensor) -> None:
        """A courtesy: one at a time such a model computes something, but hardly what its author meant."""
        try:
            with torch.no_grad():
                together = watched_losses(copied(self.model), inputs, targets, self.loss)
        except Exception:  # noqa: BLE001 - it takes one example at a time, and gets no more
            return
        if not torch.allclose(together, alone, rtol=_PROBE_TOLERANCE["fp32"], atol=1e-5, equal_nan=True):
            most = int((together - alone).abs().argmax())
            raise InputError(
                f"the loss of an example is {float(alone[most]):g} alone and {float(together[most]):g} in a batch: the "
                "model mixes samples, so no gradient belongs to one example"
            )

    def _compare(self, inputs: Tensor, targets: Tensor, gradients: Tensor | None) -> None:
        weights = torch.arange(1.0, inputs.shape[0] + 1.0).to(next(iter(trainable(self.model).values())))
        try:
            fused = self._fused.clipped_sum(inputs, targets, weights, clip_norm=math.inf, parallel=False)
        except (CannotFuseError, InputError) as error:
            if isinstance(error, InputError):
                raise
            self._leave_fused(str(error))
            return
        except Exception as error:
            if is_rowwise(self.model, inputs.dim()) and self.loss is cross_entropy:
                raise
            # One at a time it went: vmap has no rule for some operation, or values decide what is computed.
            self._leave_fused(f"torch.func: {one_line(error)}")
            return
        if gradients is None:
            return
        expected, norms = weights @ gradients, torch.linalg.vector_norm(gradients, dim=1)
        tolerance = _PROBE_TOLERANCE[self.precision]
        far = torch.linalg.vector_norm(fused.gradient - expected) > tolerance * (weights * norms).sum()
        if far or not torch.allclose(fused.norms, norms, rtol=tolerance, atol=1e-7):
            self._leave_fused("the gradients of its layers are not all of the gradient (found on the first batch)")

    def _try_vectorised(self, inputs: Tensor, targets: Tensor) -> None:
        try:
            vectorised(self.model, self.loss)(inputs, targets)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self.path, self.reason = "one by one", f"{self.reason}; torch.func: {one_line(error)}"


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
    """Dropout off and generators as before: a check must not change what a run computes."""
    dropouts = [module for module in model.modules() if isinstance(module, _DropoutNd) and module.training]
    for module in dropouts:
        module.training = False
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            for module in dropouts:
                module.training = True
