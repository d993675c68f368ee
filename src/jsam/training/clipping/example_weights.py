"""A round as one batch: the weight of each example when clients' samples are concatenated (docs/theory.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jsam.errors import InputError
from jsam.training.clipping.clipped_sum import LARGEST_RATIO


def sample_weights(
    sizes: Sequence[int],
    multiplicities: Sequence[int],
    per_round: int,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """m_k / (K M_k) for every sample of every distinct client of the round, client after client.

    A client drawn m times is listed once: its samples are computed once and weigh m times as much. Weights are rounded
    to fp32, then nudged so that a client's share never exceeds m_k / K.
    """
    if len(sizes) != len(multiplicities):
        raise InputError(f"sizes and multiplicities differ in length: {len(sizes)} and {len(multiplicities)}")
    if not sizes:
        raise InputError("sizes is empty: a round needs at least one client")
    if min(sizes) < 1:
        raise InputError(f"sizes has {min(sizes)}: every client needs at least one sample")
    if min(multiplicities) < 1:
        raise InputError(f"multiplicities has {min(multiplicities)}: list only clients drawn at least once")
    if per_round < sum(multiplicities):
        raise InputError(f"per_round is {per_round}, below the {sum(multiplicities)} draws listed")
    shares = [draws / (per_round * size) for size, draws in zip(sizes, multiplicities, strict=True)]
    exact = torch.tensor(shares, dtype=torch.float64)
    rounded = exact.float()
    down = torch.nextafter(rounded, torch.zeros_like(rounded))
    weights = torch.where(rounded.double() > exact, down, rounded).to(device)
    return weights.repeat_interleave(torch.tensor(list(sizes), device=device), output_size=sum(sizes))


def refuse_range(weights: Tensor) -> None:
    """Raises where some example weighs so little that the rounding of all others could hide more than its share.

    Not while a CUDA graph is recorded, which must not wait for a number; who replays it has checked its weights.
    """
    if weights.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    sizes = weights.detach().double().abs()
    total, least = float(sizes.sum()), float(torch.where(sizes > 0, sizes, torch.inf).min())
    if total > LARGEST_RATIO * least:
        raise InputError(
            f"an example weighs {least:.3g} of {total:.3g} in all; a batch may weigh at most 2^24 "
            f"({int(LARGEST_RATIO):,}) times its least example"
        )
