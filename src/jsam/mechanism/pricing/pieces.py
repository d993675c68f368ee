"""Rising piecewise linear functions: what a virtual cost is made of where its own formula is not known to rise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jsam.mechanism._arrays import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Linear from `starts` to `ends` between consecutive edges, with jumps between the pieces; it never falls.

    >>> step = Pieces(edges=np.array([0.0, 1.0, 2.0]), starts=np.array([0.0, 3.0]), ends=np.array([2.0, 3.0]))
    >>> step(np.array([0.5, 1.0, 1.5])).tolist()
    [1.0, 3.0, 3.0]
    """

    edges: FloatArray
    starts: FloatArray
    ends: FloatArray

    @classmethod
    def rising(cls, edges: FloatArray, starts: FloatArray, ends: FloatArray) -> Pieces:
        """The same numbers made to rise to the last digit: rounding may have left a fall. Empty pieces go."""
        wide = np.diff(edges) > 0
        edges, starts, ends = np.append(edges[:-1][wide], edges[-1]), starts[wide], ends[wide]
        both = np.maximum.accumulate(np.stack([starts, ends], axis=1).ravel())
        return cls(edges=edges, starts=both[::2].copy(), ends=both[1::2].copy())

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, z: FloatArray) -> IntArray:
        """The piece that each number lies on; the right one of two that meet there."""
        return np.clip(np.searchsorted(self.edges, z, side="right") - 1, 0, len(self) - 1)

    def __call__(self, z: FloatArray) -> FloatArray:
        i = self.at(z)
        low, start, end = self.edges[i], self.starts[i], self.ends[i]
        # Each of these operations rises with z, rounded or not; so does their result.
        share = np.clip((z - low) / (self.edges[i + 1] - low), 0.0, 1.0)
        return np.minimum(start + share * (end - start), end)

    def inverse(self, v: FloatArray) -> FloatArray:
        """The lowest number at which the value reaches v; the last edge if it never does."""
        i = np.minimum(np.searchsorted(self.ends, v, side="left"), len(self) - 1)
        low, high, start, end = self.edges[i], self.edges[i + 1], self.starts[i], self.ends[i]
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = low + (high - low) * (v - start) / (end - start)
        z = np.where(v <= start, low, np.clip(np.where(end > start, inside, high), low, high))
        for _ in range(4):
            z = np.where((self(z) < v) & (z < high), np.nextafter(z, np.inf), z)
        return np.where(self(z) < v, high, z)

    def halved(self, which: IntArray) -> Pieces:
        """The same function, with some of the pieces cut in two."""
        middles = (self.edges[which] + self.edges[which + 1]) / 2
        values = (self.starts[which] + self.ends[which]) / 2
        return Pieces(
            edges=np.insert(self.edges, which + 1, middles),
            starts=np.insert(self.starts, which + 1, values),
            ends=np.insert(self.ends, which, values),
        )

    @cached_property
    def levels(self) -> FloatArray:
        """Values that the function keeps over some stretch, in rising order."""
        return np.unique(self.starts[self.starts == self.ends])

    @cached_property
    def slopes(self) -> FloatArray:
        """dz/dv on each piece; infinite where the function is constant."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(np.diff(self.edges) / (self.ends - self.starts))

    def bends(self, marks: IntArray) -> tuple[FloatArray, FloatArray]:
        """How far the graph strays to either side of its chord, in z, from each mark (an index) to the next.

        The chord runs from (z, v) at the start of the piece `marks[j]` to (z, v) at the end of `marks[j + 1] - 1`.
        """
        first, last = marks[:-1], marks[1:] - 1
        rise = self.ends[last] - self.starts[first]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (self.edges[last + 1] - self.edges[first]) / rise
        counts, all_pieces = np.diff(marks), slice(marks[0], marks[-1])
        z_from, v_from, slope_of = (np.repeat(x, counts) for x in (self.edges[first], self.starts[first], slope))
        with np.errstate(invalid="ignore"):
            at_starts = self.edges[all_pieces] - z_from - (self.starts[all_pieces] - v_from) * slope_of
            at_ends = self.edges[marks[0] + 1 : marks[-1] + 1] - z_from - (self.ends[all_pieces] - v_from) * slope_of
        cells = marks[:-1] - marks[0]
        low = np.minimum.reduceat(np.minimum(at_starts, at_ends), cells)
        high = np.maximum.reduceat(np.maximum(at_starts, at_ends), cells)
        # A piece is its own chord. Over a stretch without any rise there is none.
        low, high = np.where(counts == 1, 0.0, np.minimum(low, 0.0)), np.where(counts == 1, 0.0, np.maximum(high, 0.0))
        flat = ~(rise > 0)
        return np.where(flat, -np.inf, low), np.where(flat, np.inf, high)
