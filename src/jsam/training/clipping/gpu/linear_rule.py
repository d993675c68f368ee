"""Linear on CUDA, called once with one vector an example: one kernel for its norms, one for the sum over examples."""

from __future__ import annotations

from torch import Tensor

from jsam.training.clipping.chunking import spans
from jsam.training.clipping.gpu.card_sum_kernels import MULTIPLIES_FP64
from jsam.training.clipping.gpu.card_sums import outer_norms, outer_sum
from jsam.training.clipping.gpu.tiles import most_outer_rows
from jsam.training.clipping.layers.layer_rule import Call
from jsam.training.clipping.layers.linear import LinearRule
from jsam.training.clipping.sums import Factors

MOST_ENTRIES = 1 << 16
"""Of a weight. The product of a larger one takes so long that copies in fp64 and many launches do not matter."""


class KernelLinearRule(LinearRule):
    """nn.Linear; what the kernels do not cover goes by the plain rule."""

    def _write_norms(self, call: Call, norms: Tensor) -> None:
        inputs = call.inputs if self.trains("weight") else None
        outer_norms(norms, call.grad_outputs, inputs, bias=self.trains("bias"))

    def _add_outer(self, call: Call, factors: Factors) -> None:
        entries, bias = self.rows * self.width, self.trains("bias")
        if not (self.trains("weight") and MULTIPLIES_FP64 and entries <= MOST_ENTRIES):
            super()._add_outer(call, factors)
            return
        for start, stop in spans(len(call.inputs), most_outer_rows(self.rows, self.width)):
            total = outer_sum(
                call.grad_outputs[start:stop], call.inputs[start:stop], factors.values[start:stop], bias=bias
            )
            self._sum("weight").join(total[:entries])
            if bias:
                self._sum("bias").join(total[entries:])
