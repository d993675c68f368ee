"""A hook that torch calls for all modules is one of each of them: with it no module is known to keep rows apart."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tests.conftest import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = require("torch", extra="train")
    from torch import Tensor, nn

from torch.nn.modules.module import register_module_forward_hook

from jsam.training.clipping import ClippingEngine


class _Own(nn.Module):
    """No chain of torch's own modules, but made of them: inside of vmap these get the rows of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(x)))
        return found


def _mixing(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    return output + 0.3 * output.sum(0, keepdim=True) if isinstance(module, nn.Linear) else None


def test_a_global_hook_cannot_mix_records() -> None:
    """A record of weight 0 changes nothing, whether the hook was there from the beginning or came later."""
    torch.manual_seed(0)
    inputs, targets, weights = torch.randn(64, 4), torch.randint(0, 3, (64,)), torch.ones(64)
    weights[0] = 0
    other = inputs.clone()
    other[0] = 1e3
    for early in (True, False):
        model = _Own()
        handle = register_module_forward_hook(_mixing) if early else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                engine = ClippingEngine(model, clip_norm=1.0)
                engine.clipped_sum(inputs[:1], targets[:1], torch.ones(1))
                handle = handle or register_module_forward_hook(_mixing)
                found = [engine.clipped_sum(x, targets, weights).gradient for x in (inputs, other)]
        finally:
            if handle is not None:
                handle.remove()
        assert torch.equal(*found)
