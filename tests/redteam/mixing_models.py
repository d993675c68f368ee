"""Models in which, if a batch went through them at once, one sample's gradient would hang on another sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

FEATURES, HIDDEN, CLASSES, BATCH = 12, 16, 4, 64
SEEN_BEFORE: list[Tensor] = []


class Base(nn.Module):
    """Two layers, with `between` called on what comes out of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.between(torch.relu(self.first(x))))
        return scores


class Centred(Base):
    def between(self, h: Tensor) -> Tensor:
        return h - h.mean(dim=0, keepdim=True)


class DropoutThenCentred(Base):
    """Two forward passes differ, so that comparing passes shows nothing."""

    def between(self, h: Tensor) -> Tensor:
        h = functional.dropout(h, 0.1, training=self.training)
        return h + h.mean(dim=0, keepdim=True)


class RReluThenCentred(Base):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.RReLU()

    def between(self, h: Tensor) -> Tensor:
        h = self.act(h - 0.1)
        return h + h.mean(dim=0, keepdim=True)


class BatchNormByHand(Base):
    def between(self, h: Tensor) -> Tensor:
        return functional.batch_norm(h, torch.zeros(HIDDEN), torch.ones(HIDDEN), training=h.shape[0] > 1)


class LargeBatchesOnly(Base):
    def between(self, h: Tensor) -> Tensor:
        return h - h.mean(dim=0, keepdim=True) if h.shape[0] > 8 else h


class GateShutAtFirst(Base):
    """Nothing is mixed until the weights move, by noise or by a server that sends others."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.up.weight)

    def between(self, h: Tensor) -> Tensor:
        mixed: Tensor = self.up(self.down(h.mean(dim=0, keepdim=True).expand_as(h)))
        return h + mixed


class AttentionOverTheBatch(Base):
    def between(self, h: Tensor) -> Tensor:
        weights = functional.dropout(torch.softmax(h @ h.t(), dim=-1), 0.1, training=self.training)
        return weights @ h


class ScaledByTheLargest(Base):
    def between(self, h: Tensor) -> Tensor:
        return h / h.abs().max().clamp(min=50.0)


class ExpertsWithCapacity(Base):
    """Who comes late in the batch finds an expert full."""

    def between(self, h: Tensor) -> Tensor:
        capacity = max(4, math.ceil(h.shape[0] / 2))
        chosen = h[:, :2].argmax(dim=-1)
        kept = torch.zeros_like(h[:, 0], dtype=torch.bool)
        for k in range(2):
            mine = chosen == k
            kept = kept | (mine & (mine.cumsum(0) <= capacity))
        return h * kept.unsqueeze(1)


class RemembersInAnAttribute(Base):
    """Adds what the forward pass before left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        out = h if self.memory is None or self.memory.shape != h.shape else h + self.memory
        self.memory = h.detach()
        return out


class RemembersInAList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Tensor] = []

    def between(self, h: Tensor) -> Tensor:
        self.memory.append(h.detach())
        return h + self.memory[0].mean(dim=0) if len(self.memory) > 1 else h


class RemembersNumbers(Base):
    """A float cannot be watched as a tensor can; reading one also rules vmap out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0.0

    def between(self, h: Tensor) -> Tensor:
        scale = 1.0 + self.seen
        self.seen += float(h.detach().sum())
        return h * scale


class RemembersInAGlobal(Base):
    def between(self, h: Tensor) -> Tensor:
        out = h + SEEN_BEFORE[-1] if SEEN_BEFORE and SEEN_BEFORE[-1].shape == h.shape else h
        SEEN_BEFORE.append(h.detach())
        return out


class DrawsAsOftenAsItLikes(Base):
    """How many numbers one sample draws would decide which the next one gets."""

    def between(self, h: Tensor) -> Tensor:
        if float(h.detach().sum()) > 20.0:
            torch.rand(17)
        return functional.dropout(h, 0.5)


class MixedOnTheWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] + 10 * gradients[0].sum(dim=0, keepdim=True)


class BackwardMixes(Base):
    def between(self, h: Tensor) -> Tensor:
        out: Tensor = MixedOnTheWayBack.apply(h)  # type: ignore[no-untyped-call]
        return out


class TensorHookMixes(Base):
    def between(self, h: Tensor) -> Tensor:
        out = h * 1.0
        out.register_hook(lambda g: g + 10 * g.sum(dim=0, keepdim=True))  # type: ignore[no-untyped-call]
        return out


class MixingLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x.mean(dim=0, keepdim=True) if x.shape[0] > 8 else x)


class WithMixingLinear(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first = MixingLinear(FEATURES, HIDDEN)


class BatchDependentWeight(nn.Module):
    def __init__(self, owner: list[Tensor]) -> None:
        super().__init__()
        self.owner = owner

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (1.0 + self.owner[-1].mean()) if self.owner else weight


class ParametrisedByTheBatch(Base):
    """A weight that is computed from the batch that is going through."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        parametrize.register_parametrization(self.last, "weight", BatchDependentWeight(self.seen))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        scores: Tensor = super().forward(x)
        return scores


class MixingSequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        x = x + x.sum(dim=0) if x.shape[0] > 8 else x
        scores: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return scores


def hooked_forward() -> nn.Module:
    model = _plain()
    model[0].register_forward_hook(lambda module, args, out: out + out.mean(dim=0) if len(out) > 8 else None)
    return model


def hooked_backward() -> nn.Module:
    model = _plain()

    def hook(module: nn.Module, into: Any, out: Any) -> tuple[Tensor, ...]:
        return tuple(gradient + 10 * gradient.sum(dim=0) for gradient in into)

    model[2].register_full_backward_hook(hook)
    return model


def hooked_with_a_memory() -> nn.Module:
    """Only one at a time can it be run, and there a hook would carry numbers from one sample to the next."""
    model, seen = RemembersNumbers(), [0.0]

    def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        seen.append(float(out.detach().sum()))
        return out * (1.0 + seen[-2])

    model.first.register_forward_hook(hook)
    return model


def patched() -> nn.Module:
    model: Any = _plain()
    own = model[2].forward
    model[2].forward = lambda x: own(x + x.mean(dim=0)) if len(x) > 8 else own(x)
    return model  # type: ignore[no-any-return]


class MixingParameter(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            return out + out.mean(dim=0) if func is functional.linear and len(out) > 8 else out


def odd_parameter() -> nn.Module:
    model: Any = _plain()
    model[2].weight = MixingParameter(model[2].weight.detach().clone())
    return model  # type: ignore[no-any-return]


def _plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def _with(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), *modules, nn.Linear(HIDDEN, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        kind.__name__: kind
        for kind in (
            Centred, DropoutThenCentred, RReluThenCentred, BatchNormByHand, LargeBatchesOnly, GateShutAtFirst,
            AttentionOverTheBatch, ScaledByTheLargest, ExpertsWithCapacity, RemembersInAnAttribute, RemembersInAList,
            RemembersNumbers, RemembersInAGlobal, DrawsAsOftenAsItLikes, BackwardMixes, TensorHookMixes,
            WithMixingLinear, ParametrisedByTheBatch,
        )
    },
    "a Sequential of its own": lambda: MixingSequential(*_plain()),
    "a forward hook": hooked_forward,
    "a backward hook": hooked_backward,
    "a hook with a memory": hooked_with_a_memory,
    "a patched forward": patched,
    "a parameter of its own kind": odd_parameter,
    "Softmax(0)": _with(nn.Softmax(dim=0)),
    "Softmax(-2)": _with(nn.Softmax(dim=-2)),
    "LayerNorm over the batch": _with(nn.LayerNorm((BATCH, HIDDEN), elementwise_affine=False)),
    "ZeroPad2d that moves rows": _with(nn.ZeroPad2d((0, 0, 1, -1))),
    "Flatten(0)": lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Flatten(0), nn.Unflatten(0, (BATCH, CLASSES))),
    "BatchNorm that tracks": _with(nn.BatchNorm1d(HIDDEN)),
    "Conv1d across the batch": lambda: nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.Conv1d(BATCH, BATCH, 1), nn.Linear(HIDDEN, CLASSES)
    ),
}  # fmt: skip
