"""Who is simulated: how much data each client holds, as a file says or as they are dealt out, and what plans for them.

A plan uses the numbers of samples that clients hold. A mechanism that cannot is refused where a file gives the
numbers, as `jsam plan` refuses it; where they only follow from how data are dealt out, it plans for all alike, and a
line says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jsam.cli.inputs import Inputs
from jsam.cli.output import say
from jsam.cli.wording import in_options
from jsam.errors import InputError, UnequalDataError

if TYPE_CHECKING:
    from jsam.mechanism.contract import Contract
    from jsam.mechanism.priors import Prior
    from jsam.mechanism.rules import Rules


class Simulated(ABC):
    """Clients that are to be simulated."""

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """How many there are."""

    def sizes(self, num_samples: int) -> tuple[int, ...] | None:
        """How many samples each holds, of so many in the data set; None if nothing says it."""
        return None

    @abstractmethod
    def contract(self, sizes: Sequence[int]) -> Contract:
        """The contract, now that data are dealt out in these sizes."""

    def under(self, rules: Rules) -> Simulated:
        """The same clients under rules whose weights are known by now."""
        return self

    @property
    def ids(self) -> tuple[str, ...]:
        """Their names, as a contract has them."""
        return tuple(map(str, range(self.num_clients)))

    def held(self, partition: Mapping[str, Any], num_samples: int) -> dict[str, Any]:
        """The options of a partition, with the sizes of these clients."""
        sizes = self.sizes(num_samples)
        if sizes is None:
            return dict(partition)
        if "sizes" in partition:
            raise InputError(f"give --sizes or {self.source}, not both: it says how much data each client holds")
        own_sizes = partition.get("scheme") == "writer" or "min_size" in partition
        return {**partition, **({} if own_sizes else {"sizes": sizes})}

    @property
    def source(self) -> str:
        """What says how much data each client holds."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Reporting(Simulated):
    """Clients in a file, or so many of whom none tells."""

    rules: Rules
    table: Inputs | None = None
    count: int = 0

    @property
    def num_clients(self) -> int:
        return self.count if self.table is None else self.table.market.num_clients

    def sizes(self, num_samples: int) -> tuple[int, ...] | None:
        samples = None if self.table is None else self.table.market.samples
        return None if samples is None else tuple(samples)

    def under(self, rules: Rules) -> Reporting:
        return replace(self, rules=rules, table=None if self.table is None else replace(self.table, rules=rules))

    @property
    def ids(self) -> tuple[str, ...]:
        names = None if self.table is None else self.table.market.ids
        return super().ids if names is None else tuple(names)

    @property
    def priors(self) -> list[Prior]:
        """All that is known of their prices beforehand."""
        prior = self.rules.prior_of_all() if self.table is None else self.table.market.prior
        return list(prior) if isinstance(prior, Sequence) else [prior]

    @property
    def source(self) -> str:
        assert self.table is not None
        assert self.table.table is not None
        return f"column 'samples' of {self.table.table.source}"

    def contract(self, sizes: Sequence[int]) -> Contract:
        stated = self.sizes(sum(sizes))
        if stated is not None:
            _agree(stated, sizes, self.source)
            return self._inputs(sizes).contract()[0]
        try:
            contract = self._inputs(sizes).contract()[0]
        except UnequalDataError as error:
            _say_alike(sizes, in_options(str(error)))
            return self._inputs(None).contract()[0]
        if contract.data_shares is None and min(sizes) < max(sizes):
            _say_alike(sizes, f"{contract.mechanism} looks at no sizes")
        return contract

    def _inputs(self, sizes: Sequence[int] | None) -> Inputs:
        if self.table is None:
            return Inputs.drawn(self.count, self.rules, sizes)
        return replace(self.table, market=replace(self.table.market, samples=sizes))


@dataclass(frozen=True, kw_only=True)
class Planned(Simulated):
    """Clients of a contract that is there already."""

    file: Path

    @cached_property
    def _contract(self) -> Contract:
        from jsam.mechanism.contract_files import load_contract

        return load_contract(self.file)

    @property
    def num_clients(self) -> int:
        return self._contract.num_clients

    def sizes(self, num_samples: int) -> tuple[int, ...] | None:
        from jsam.training.partition import apportioned

        shares = self._contract.data_shares
        return None if shares is None else apportioned(shares, num_samples)

    @property
    def source(self) -> str:
        return f"contract {self.file}"

    def contract(self, sizes: Sequence[int]) -> Contract:
        stated = self.sizes(sum(sizes))
        if stated is not None:
            _agree(stated, sizes, self.source)
        elif min(sizes) < max(sizes):
            _say_alike(sizes, f"{self.source} was planned without sizes")
        return self._contract


def asked(clients: str, rules: Rules) -> Reporting:
    """What --clients names, under these rules."""
    if clients.isdigit():
        return Reporting(rules=rules, count=int(clients))
    if _is_number(clients):
        raise InputError(f"--clients is {clients}; it must be a whole number of at least 1, or a CSV file")
    return Reporting(rules=rules, table=Inputs.read(clients, rules))


def _agree(stated: Sequence[int], dealt: Sequence[int], source: str) -> None:
    """Refuse data that are dealt out in other sizes than are stated."""
    odd = np.flatnonzero(np.array(stated) != np.array(dealt))
    if len(odd):
        k = int(odd[0])
        raise InputError(
            f"{source} has {stated[k]} samples for the first client that differs, and the data are dealt out with"
            f" {dealt[k]} for it; leave out those samples, or --scheme writer and --min-size, which have sizes of"
            " their own"
        )


def _say_alike(sizes: Sequence[int], why: str) -> None:
    say(
        f"warning: clients hold {min(sizes)} to {max(sizes)} samples, and the plan treats all of them alike; noise and"
        f" accounting do not ({why})"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
