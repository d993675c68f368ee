"""What server and client say to each other, whatever carries it: plain values by name, and in a round one vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Value = str | int | float
Vector = NDArray[np.float32]


class Kind(StrEnum):
    """The questions that a server asks. Each may be asked twice without harm."""

    HELLO = "hello"
    ELICIT = "elicit"
    OFFER = "offer"
    CLOSE = "close"
    ROUND = "round"


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """One question to one client; `parameters` are the model's, and only a round has them.

    A client trusts nothing in it.
    """

    kind: Kind
    values: Mapping[str, Any] = field(default_factory=dict)
    parameters: Vector | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a client says; `release` is there if it answers a round."""

    values: Mapping[str, Value]
    release: Vector | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A vector as a client sent it: what it says of its form, and bytes that nobody has looked into yet."""

    form: str
    dtype: str
    shape: tuple[int, ...]
    data: object


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """What came back for one message. Nothing in `values` and `release` is trusted.

    `error` is the transport's own word that nobody answered. Where a client sent something that is no answer at all,
    `readable` is false.
    """

    message_id: str
    values: Mapping[str, object] = field(default_factory=dict)
    release: Encoded | None = None
    error: str | None = None
    readable: bool = True
