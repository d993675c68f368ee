"""Which forward and backward passes cannot fail for the sake of a record's values: decided by torch's operations.

The code of a model that nobody knows runs under torch.func.vmap, where no value can decide what is computed: torch
refuses to branch on one, or to let it choose a shape. So a pass over made-up records shows every operation of a pass
over any others. If each of them gives a result whatever its numbers are, no record can make the pass fail.

Looking up a row by number (`nn.Embedding`) fails for a number beyond the table. It is accepted where such numbers
follow from whole numbers of the record alone: then no parameters that a server sends can change which records fail,
and one trial with other parameters has found them (jsam.training.federated.fit_records).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_FROM_FLOATS = "_jsam_from_floats"


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Names of torch's operations, with an overload where only that one is sure: a whole number divided by 0 and rounded
# fails, and so does a draw whose probability a tensor gives. What is not here counts as unsure, such as cholesky.
_SURE = _names(
    # other forms of the same numbers
    "_reshape_alias _unsafe_view alias as_strided cat clone constant_pad_nd copy detach diagonal expand flip im2col "
    "lift_fresh permute reflection_pad1d reflection_pad2d reflection_pad3d repeat replication_pad1d replication_pad2d "
    "replication_pad3d roll select slice split split_with_sizes squeeze stack t transpose tril triu unbind unfold "
    "unsafe_split unsqueeze view _to_copy pixel_shuffle "
    # constants, and draws
    "arange empty empty_like eye fill full full_like linspace new_empty new_full new_ones new_zeros ones ones_like "
    "rand rand_like randn randn_like scalar_tensor zero zeros zeros_like bernoulli.p bernoulli_.float native_dropout "
    # number by number
    "abs add addcdiv addcmul atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max "
    "clamp_min cos cosh div.Tensor div.Scalar elu eq erf erfc exp exp2 expm1 floor ge gelu glu gt hardshrink "
    "hardsigmoid hardswish hardtanh isinf isnan le leaky_relu lerp log log10 log1p log2 log_sigmoid_forward "
    "logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum mish mul nan_to_num ne neg "
    "pow.Tensor_Scalar reciprocal relu round rsqrt rsub selu sgn sigmoid sign silu sin sinh softplus softshrink sqrt "
    "sub tan tanh threshold trunc where "
    # sums, products and the like
    "_log_softmax _safe_softmax _softmax addmm addmv all amax amin any argmax argmin argsort baddbmm bmm cumsum dot "
    "linalg_vector_norm logsumexp max mean min mm mv prod sort std sum topk var var_mean "
    # layers
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _native_batch_norm_legit adaptive_max_pool2d adaptive_max_pool3d "
    "avg_pool2d avg_pool3d convolution max_pool2d_with_indices max_pool3d_with_indices mkldnn_rnn_layer "
    "native_batch_norm native_group_norm native_layer_norm upsample_bilinear2d upsample_nearest1d upsample_nearest2d "
    "_scaled_dot_product_flash_attention_for_cpu"
)
_LOOK_UPS = _names("embedding gather index_select")
# On the way back, and in the loss, numbers of rows are those that the forward pass looked up or found, or labels.
_ON_THE_WAY_BACK = _names("gather scatter scatter_add index_add embedding_dense_backward col2im")


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, looks at each operation of one pass; `loss` must be the pass's loss, which ends its forward half.

    `unsure` is the first operation that may fail for some values, or None.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unsure: str | None = None
        self._loss, self._forward = loss, True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._forward = False
        return self._loss(outputs, targets)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if self.unsure is None and not self._is_sure(func, given):
            self.unsure = str(func)
        if not all(map(_is_exact, given)):
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and not value.is_floating_point():
                    setattr(value, _FROM_FLOATS, True)
                    if func._schema.is_mutable and value.dtype is not torch.bool:
                        # Views of it that were made before would not bear the mark.
                        self.unsure = self.unsure or str(func)
        return result

    def _is_sure(self, func: Any, given: list[Tensor]) -> bool:
        name, overload = func.__name__.split(".", 1)
        bare = name if name.startswith("__") else name.rstrip("_")
        if {bare, f"{bare}.{overload}", f"{name}.{overload}"} & _SURE:
            return True
        if self._forward:
            return name in _LOOK_UPS and all(value.is_floating_point() or _is_exact(value) for value in given)
        return bare in _ON_THE_WAY_BACK or bare.endswith(("_backward", "_backward_data"))


def _is_exact(value: Tensor) -> bool:
    """Whether it follows from whole numbers alone."""
    return not value.is_floating_point() and not getattr(value, _FROM_FLOATS, False)
