"""How the work of the kernels for per-example gradients is cut up."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """How much of one example's gradient a program computes, and the positions it reads at a time."""

    outputs: int
    columns: int
    positions: int
    warps: int
    stages: int


def tile_for(outputs: int, channels: int, columns: int, positions: int, kind: str) -> Tile:
    """By measurement on an H200 (docs/performance.md); any powers of two of at least 16 give the same result.

    `kind` is the product's. In bf16 the inputs are bf16 too, or fp32 where they come from outside a chain (images):
    rounded on load, they take 98 KB of shared memory at most.
    """
    high = min(64, max(16, next_power_of_two(outputs)))
    low = min(32, high)
    wide = max(16, next_power_of_two(columns))
    if positions <= 32:
        return Tile(high, min(128, wide), 32, 4, 1)
    if columns <= 64:
        return Tile(low, wide, 32, 1, 2)
    if channels < 64:
        if kind == "fp32":
            return Tile(low, 64, 32, 2, 4) if high == low else Tile(high, 64, 32, 4, 3)
        if kind == "tf32":
            return Tile(low, 128, 32, 1, 3) if high == low else Tile(high, 128, 32, 2, 2)
        return Tile(low, 32, 64, 1, 3) if high == low else Tile(high, 128, 64, 4, 3)
    few = positions <= 64
    if kind == "fp32":
        return Tile(high, 128, 64, 4, 1) if few else Tile(high, 64, 64, 4, 2)
    if kind == "tf32":
        # Two warps: with four, Triton takes the warp-group instruction, whose tf32 operands it must transpose.
        return Tile(high, 128, 32, 2, 2)
    return Tile(high, 128, 64, 4, 1 if few else 2)


class Share(NamedTuple):
    """How a weighted sum of rows is shared out: columns and rows that a program reads at a time, rows it adds up."""

    columns: int
    step: int
    rows: int
    warps: int
    stages: int


# Several times what a large card runs at once, so that few of its processors have nothing to do at the end.
_PROGRAMS = 2048
# Rows that a program adds up, and programs that share them: whatever is added passes rows ÷ step, step and programs
# roundings, together at most `LONGEST_CHAIN`.
_FEWEST_ROWS, _MOST_ROWS, _MOST_SHARES = 64, 1024, 128


def share_for(n: int, size: int) -> Share:
    """For n rows of `size` entries, by rule, so that the order of additions is the same every time.

    Each thread has eight loads of 16 bytes under way (rows in fp32). Where columns are few, rows are shared by more
    programs.
    """
    columns, step = 256, 16
    shares = max(1, min(_MOST_SHARES, _PROGRAMS // -(-size // columns)))
    rows = -(-n // (shares * step)) * step
    return Share(columns, step, min(_MOST_ROWS, max(_FEWEST_ROWS, rows)), 4, 1)


# Rows and shares are roundings on the way of what is added: together at most `LONGEST_CHAIN`.
_MOST_OUTER_ROWS, _MOST_OUTER_SHARES = 128, 127
_OUTER_PROGRAMS, _OUTER_ENTRIES = 512, 1 << 27


def most_outer_rows(outputs: int, size: int) -> int:
    """How many rows may be summed at once: within the chain, and with shares that do not fill a card's memory."""
    return _MOST_OUTER_ROWS * max(1, min(_MOST_OUTER_SHARES, _OUTER_ENTRIES // (outputs * size)))


def outer_share_for(n: int, outputs: int, size: int) -> tuple[int, Share]:
    """Outputs of a program and its share of at most `most_outer_rows` outer products, by rule as above."""
    high, wide = (min(64, max(16, next_power_of_two(side))) for side in (outputs, size))
    step = 16
    tiles = -(-outputs // high) * -(-size // wide)
    shares = max(1, min(_MOST_OUTER_SHARES, _OUTER_PROGRAMS // tiles))
    rows = -(-n // (shares * step)) * step
    return high, Share(wide, step, min(_MOST_OUTER_ROWS, max(2 * step, rows)), 4, 3)


def next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
