"""By how much one record moves the mean, in units of C/M, on records made against running sums and on random ones.

    python -m benchmarks.sensitivity [--device cuda] [--records 100 10000 100000 1000000] [--json FILE]

For every kind of records, M and precision of the device, a few records are taken away one after the other, their slots
left empty. The largest shift is shown; 1 is what is sold. The model has one convolution of 25 weights, so that a
million records are quick, and each gradient entry can be chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.output import print_table, store
from benchmarks.timing import Row
from jsam.training.clipping import ClippingEngine, sample_weights
from jsam.training.clipping.precision import PRECISIONS, Precision

PACKAGES = ("jsam", "torch", "numpy")
CLIP_NORM = 1.0
SIDE = 5
_GROUP = 32
_KEPT = 4


@dataclass(frozen=True, kw_only=True)
class Records:
    """Images and labels, and which of them to take away one by one."""

    inputs: Tensor
    targets: Tensor
    taken: Sequence[int]


def model() -> nn.Module:
    """Its gradient is the image, with a sign for the label: a weight of 0 gives tanh(0), where the slope is 1."""
    convolution, head = nn.Conv2d(1, 1, SIDE, bias=False), nn.Linear(1, 2, bias=False)
    head.requires_grad_(False)
    with torch.no_grad():
        convolution.weight.zero_()
        head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), head)


def running(count: int) -> Records:
    """A weighted sum of a quarter is built up; then half ulps of it come with alternate signs: rounded up, never down.

    With one large record less the quarter is not reached, and the small ones are rounded otherwise.
    """
    images, targets = _blank(count), torch.ones(count, dtype=torch.int64)
    bits = count.bit_length() - 1
    used, weight = 2**bits, float(sample_weights([count], [1], 1)[0])
    half = used // 2
    images[:half, 0, 0, 0] = 2.0 ** -(bits + 1) / weight
    up, skew = 2.0**-25 / weight, 2.0**-10
    images[half:used:2, 0, 0, 0] = up * (1 + skew) / 2
    images[half + 1 : used : 2, 0, 0, 0] = up * (1 - skew) / 2
    targets[half + 1 : used : 2] = 0
    return Records(inputs=images, targets=targets, taken=(half - 1, 0, half))


def in_groups(count: int) -> Records:
    """The same in every few records: one that is clipped, then half ulps of what it adds."""
    images, targets = _blank(count), torch.ones(count, dtype=torch.int64)
    place = torch.arange(count) % _GROUP
    up, skew = 2.0**-25, 2.0**-10
    images[:, 0, 0, 0] = torch.where(place == 0, 2.0, up * torch.where(place % 2 == 1, 1 + skew, 1 - skew))
    targets[(place > 0) & (place % 2 == 0)] = 0
    return Records(inputs=images, targets=targets, taken=(0, _GROUP * (count // _GROUP // 2), 1, 2))


def opposed(count: int) -> Records:
    """Long gradients of both signs, all clipped: the sum stays small while what is added is large."""
    source = torch.Generator().manual_seed(1)
    images = torch.randn(count, 1, SIDE, SIDE, generator=source).abs_() * 100
    return Records(inputs=images, targets=torch.arange(count) % 2, taken=_some(count))


def spread(count: int) -> Records:
    """Lengths over fifteen decades."""
    source = torch.Generator().manual_seed(2)
    images = torch.randn(count, 1, SIDE, SIDE, generator=source)
    images *= 10.0 ** (torch.rand(count, 1, 1, 1, generator=source) * 15 - 12)
    longest = int(images.flatten(1).norm(dim=1).argmax())
    return Records(
        inputs=images,
        targets=torch.randint(0, 2, (count,), generator=source),
        taken=(longest, *_some(count)),
    )


def usual(count: int) -> Records:
    """Independent normal numbers, about half of the gradients clipped."""
    source = torch.Generator().manual_seed(3)
    images = torch.randn(count, 1, SIDE, SIDE, generator=source) * 0.4
    return Records(inputs=images, targets=torch.randint(0, 2, (count,), generator=source), taken=_some(count))


KINDS = {
    "half ulps of the whole": running,
    "half ulps of a group": in_groups,
    "opposed": opposed,
    "fifteen decades": spread,
    "random": usual,
}


def worst_shift(
    kind: str, count: int, *, device: str = "cpu", precision: Precision = "fp32", takes: int = _KEPT
) -> float:
    """The largest shift of the mean, in C/M."""
    records = KINDS[kind](count)
    engine = ClippingEngine(model().to(device), clip_norm=CLIP_NORM, precision=precision)
    inputs, targets = records.inputs.to(device), records.targets.to(device)
    weights = sample_weights([count], [1], 1, device=device)
    whole = engine.clipped_sum(inputs, targets, weights).gradient
    worst = 0.0
    for i in dict.fromkeys(records.taken[:takes]):
        without = weights.clone()
        without[i] = 0.0
        rest = engine.clipped_sum(inputs, targets, without).gradient
        worst = max(worst, float((whole.double() - rest.double()).norm()) * count / CLIP_NORM)
    return worst


def _blank(count: int) -> Tensor:
    return torch.zeros(count, 1, SIDE, SIDE)


def _some(count: int) -> tuple[int, ...]:
    return (0, count // 3, count // 2, count - 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sensitivity", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--records", type=int, nargs="+", default=[100, 10_000, 100_000, 1_000_000])
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results with versions and machine")
    options = parser.parse_args()
    results: dict[str, list[Row]] = {}
    for precision in PRECISIONS if options.device == "cuda" else PRECISIONS[:1]:
        results[precision] = []
        for kind in KINDS:
            found = {
                count: worst_shift(kind, count, device=options.device, precision=precision) for count in options.records
            }
            worst = max(found.values())
            results[precision].append(
                Row(
                    what=f"{kind}, {options.device}",
                    bar="≤ 1 + 1e-6",
                    measured=", ".join(f"M = {count:,}: {value:.9f}" for count, value in found.items()),
                    ratio=worst,
                    met=worst <= 1 + 1e-6,
                    numbers={str(count): value for count, value in found.items()},
                )
            )
    print_table(
        results,
        title="Largest shift of the mean by one record, in C/M",
        command="precision",
        packages=PACKAGES,
        left_out=lambda name: "the device does not have it",
    )
    if options.json is not None:
        store(results, options.json, module="benchmarks.sensitivity", packages=PACKAGES)


if __name__ == "__main__":
    main()
