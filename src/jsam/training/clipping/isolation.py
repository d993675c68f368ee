"""Models that nobody knows, run one example at a time: torch.func.vmap calls them on single examples, all at once.

Inside of vmap the code of a model sees one example and cannot reach another one's values: an operation over the batch
dimension is one over a single example. Modules that are known to treat rows apart get the rows of the whole batch at
once there, which is as quick as without vmap. What is left to watch is what outlives a forward pass: a value that the
model stored away would still stand for the examples of that pass. `Watch` refuses to compute with such a value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from jsam.errors import InputError
from jsam.training.clipping.layers import CannotFuseError
from jsam.training.clipping.rowwise import RANKS, is_plain

_MARK = "_jsam_forward_pass"


class Watch(TorchFunctionMode):
    """One forward pass: while entered, torch refuses to compute with what another forward pass made.

    All that torch returns is marked with its pass. Values of examples inside of vmap must bear the mark of this one;
    other tensors must not bear another's. What is no tensor, a number that a model read from one, bears no mark.
    """

    def own(self, values: object) -> None:
        """Mark values as made in this pass."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                setattr(value, _MARK, self)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._refuse_foreign(value)
        result = func(*args, **(kwargs or {}))
        self.own(result)
        return result

    def _refuse_foreign(self, value: Tensor) -> None:
        mark = getattr(value, _MARK, None)
        if mark is not self and (mark is not None or is_functorch_wrapped_tensor(value)):
            raise InputError(
                "the model computes with values that it kept from another forward pass, so samples would mix; "
                "a model must keep nothing of the samples that it has seen"
            )


def copied(model: nn.Module) -> nn.Module:
    """A copy that shares nothing with the model: what a forward pass writes to it is gone with it."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            # An intermediate result that somebody left on the module is the one thing that torch does not copy.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise InputError(
            f"the model cannot be copied ({type(error).__name__}); a model of your own runs on copies, so that a "
            "forward pass changes nothing, and must allow copy.deepcopy"
        ) from error


def checked_loss(losses: Tensor, n: int) -> Tensor:
    """A mean over the batch here would silently clip the wrong thing."""
    if losses.shape != (n,):
        examples = "1 example" if n == 1 else f"{n} examples"
        raise InputError(
            f"loss returned shape {tuple(losses.shape)} for {examples}; "
            "it must return one value an example (reduction='none')"
        )
    return losses


class IsolatedModel:
    """A copy of a model whose forward pass and loss see one example at a time; its known modules are the model's own.

    `names` are the modules whose calls must be seen: calls of these go through the model's module, hooks and all, or
    raise CannotFuseError.
    """

    def __init__(self, model: nn.Module, names: Mapping[nn.Module, str]) -> None:
        self._twin = copied(model)
        for module, twin in zip(model.modules(), self._twin.modules(), strict=True):
            if type(module) is nn.RReLU and is_plain(module) and module.training:
                object.__setattr__(twin, "forward", partial(_rrelu, module))
            elif type(module) in RANKS and is_plain(module):
                object.__setattr__(twin, "forward", _Known(module, twin.forward, names.get(module)))
        trained = (*self._twin.parameters(), *model.parameters())
        self.parameters = frozenset(id(value) for value in trained if value.requires_grad)
        """Trainable parameters, the model's and the copy's, by id."""

    def losses(self, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return each_loss(loss, inputs, targets, run=self._twin)


def each_loss(
    loss: Callable[[Tensor, Tensor], Tensor],
    values: Tensor,
    targets: Tensor,
    run: Callable[[Tensor], Tensor] = lambda outputs: outputs,
) -> Tensor:
    """A loss that may look at a whole batch, given one example at a time of what `run` makes of the values."""
    losses: Tensor = torch.func.vmap(partial(lone_loss, run, loss), randomness="different")(values, targets)
    return losses


def lone_loss(
    run: Callable[[Tensor], Tensor], loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, *given: object
) -> Tensor:
    """The loss of one example, for vmap; `given` are further values that the forward pass `run` may compute with."""
    with Watch() as watch:
        watch.own((x, y, given))
        return checked_loss(loss(run(x.unsqueeze(0)), y.unsqueeze(0)), 1).squeeze(0)


def _rrelu(module: nn.RReLU, x: Tensor) -> Tensor:
    """The same with a slope drawn for every number, also where it is not used; torch's own has no rule for vmap."""
    slopes = module.lower + (module.upper - module.lower) * torch.rand_like(x)
    return torch.where(x >= 0, x, slopes * x)


class _Known:
    """The forward pass of a known module inside of vmap: all rows at once, where they are rows."""

    def __init__(self, module: nn.Module, own: Callable[..., Tensor], name: str | None) -> None:
        self._module, self._own, self._name = module, own, name

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and is_batchedtensor(args[0]):
            x = args[0]
            if x.dim() and x.shape[0] == 1 and RANKS[type(self._module)](self._module, x.dim()) is not None:
                result: Tensor = _Rows.apply(x, self._module)  # type: ignore[no-untyped-call]
                return result
        if self._name is not None:
            raise CannotFuseError(_misuse(self._name, args, kwargs))
        return self._own(*args, **kwargs)


def _misuse(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
        return f"{name} is called with {len(args) + len(kwargs)} arguments, not one"
    if not is_batchedtensor(args[0]):
        return f"{name} sees inputs that do not come from an example"
    return f"{name} sees inputs of shape {tuple(args[0].shape)}, not one row for each example"


class _Rows(torch.autograd.Function):
    """The public way out of vmap: `vmap` is given the tensor of all examples."""

    @staticmethod
    def forward(x: Tensor, module: nn.Module) -> Tensor:  # noqa: ARG004
        raise AssertionError("only values of examples come here")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,  # noqa: ARG004
        in_dims: tuple[int | None, ...],
        x: Tensor,
        module: nn.Module,
    ) -> tuple[Tensor, int]:
        if in_dims[0] is None or is_functorch_wrapped_tensor(x):
            raise CannotFuseError("a layer is called inside of a transform of the model's own")
        return module(x.movedim(in_dims[0], 0).squeeze(1)).unsqueeze(1), 0
