"""A market and the rules under which it is planned: the one way of every command to a contract."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from jsam.cli.clients import ClientTable, read_clients
from jsam.cli.output import progress_bar, say
from jsam.cli.rule_options import known_here
from jsam.errors import InputError
from jsam.mechanism.families.description import SELECTION_PROBS
from jsam.mechanism.market import Market

if TYPE_CHECKING:
    from jsam.mechanism.budget.loss_weight import BudgetPlan
    from jsam.mechanism.contract import Contract
    from jsam.mechanism.families.base import RangeMechanism
    from jsam.mechanism.rules import Rules
    from jsam.mechanism.solver.payments import Progress


def check_without_file(rules: Rules, num_clients: int, who: str) -> None:
    """Refuse rules under which so many clients, of whom no file tells, cannot be planned for. `who` says which."""
    if num_clients < 1:
        raise InputError(f"--clients is {num_clients}; it must be at least 1")
    for need in rules.needs:
        raise InputError(f"{rules.mechanism} selects by {need.words}, which {who}; choose another --mechanism")
    if rules.max_selection_prob is not None:
        rules.mechanism_at(1.0).rule(num_clients)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The clients of one question, and the rules. Clients from a file have a `table`, simulated ones have none."""

    market: Market
    rules: Rules
    table: ClientTable | None = None

    @classmethod
    def read(cls, clients: str, rules: Rules) -> Inputs:
        """The clients in a file."""
        table = read_clients(clients)
        with progress_bar("Looking at the prior", None):
            market = table.market(rules.prior, lot=rules.lot, seed=rules.seed)
        if table.note:
            say(table.note)
        return cls(table=table, market=market, rules=rules)

    @classmethod
    def drawn(cls, num_clients: int, rules: Rules, samples: Sequence[int] | None = None) -> Inputs:
        """Simulated clients, whose reports are drawn from the prior. What they cannot be planned under is refused.

        `samples` are how much data each of them holds.
        """
        from jsam.runs.drawn_sensitivities import draw_sensitivities

        check_without_file(rules, num_clients, "simulated clients do not have (a CLIENTS.csv for --clients may)")
        reports = draw_sensitivities(rules.prior_of_all(), num_clients, rules.seed)
        if rules.lot is not None and samples is not None:
            reports = reports * np.array(samples) / rules.lot  # the prior is that of the price of a lot
        return cls(market=rules.market(reports, samples=samples), rules=rules)

    def under(self, mechanism: str) -> Inputs:
        """The same clients under another mechanism."""
        return replace(self, rules=replace(self.rules, mechanism=known_here(mechanism)))

    def named_mechanism(self) -> RangeMechanism:
        """The mechanism that the rules name; under a budget its loss weight is still to be set."""
        probs = None
        if self.table is not None and SELECTION_PROBS in self.rules.needs:
            probs = self.table.selection_probs()
        return self.rules.mechanism_at(1.0 if self.rules.loss_weight is None else self.rules.loss_weight, probs)

    def settled_mechanism(self) -> tuple[RangeMechanism, BudgetPlan | None]:
        """The mechanism with the loss weight that the rules fix, or that their budget buys from these clients."""
        budget, mechanism = self.rules.budget, self.named_mechanism()
        try:
            with progress_bar(f"Budget of {mechanism.name}") as bar:
                return self.rules.settled(mechanism, self.market, bar.reach)
        except OverflowError as error:
            raise self._too_large(mechanism.name) from error
        except InputError as error:
            # Of a budget it may speak of a loss weight, which the user did not give.
            if budget is None or type(error) is not InputError or "budget" in str(error):
                raise
            raise InputError(f"--budget {budget:g} cannot be turned into a loss weight: {error}") from error

    def contract(self, *, payments: bool = True) -> tuple[Contract, BudgetPlan | None]:
        """The plan for these clients; beside it what the budget buys, if there is one."""
        mechanism, bought = self.settled_mechanism()
        with progress_bar(f"Payments of {mechanism.name}", self.market.num_clients) as bar:
            return self.planned(mechanism, payments=payments, progress=bar.advance), bought

    def planned(
        self, mechanism: RangeMechanism, *, payments: bool = True, progress: Progress | None = None
    ) -> Contract:
        """The plan of a mechanism, unless it gets too large for floating-point numbers; then it is refused."""
        trouble: OverflowError | None = None
        try:
            with self.locating_errors():
                contract = self.rules.planned(mechanism, self.market, payments=payments, progress=progress)
            if np.isfinite((contract.objective, contract.expected_cost, contract.total_payment or 0.0)).all():
                return contract
        except OverflowError as error:
            trouble = error
        raise self._too_large(mechanism.name, mechanism.loss_weight) from trouble

    def locating_errors(self) -> contextlib.AbstractContextManager[None]:
        """Say in which line of the file stands a client that is refused."""
        return contextlib.nullcontext() if self.table is None else self.table.locating_errors()

    def _too_large(self, name: str, loss_weight: float | None = None) -> InputError:
        """The error for numbers beyond floating point: which of them is to blame, only the user can tell."""
        rules, reports = self.rules, self.market.sensitivities
        blamed = [f"sensitivities from {reports.min():g} to {reports.max():g}"]
        if rules.budget is not None:
            blamed.append(f"--budget {rules.budget:g}")
        if loss_weight is not None:
            blamed.append(f"loss weight {loss_weight:g}")
        blamed += [f"noise weight {rules.noise_weight:g}", f"bias weight {rules.bias_weight:g}"]
        if rules.max_epsilon is not None:
            blamed.append(f"--max-epsilon {rules.max_epsilon:g}")
        return InputError(
            f"{name} gets too large for floating-point numbers, with {', '.join(blamed)}; use other units"
        )

    @property
    def prior_text(self) -> str:
        """The prior as the user gave it."""
        shared, own = self.rules.prior, 0 if self.table is None else self.table.num_own_priors
        if not own:
            return str(shared)
        return f"{own} clients have their own" if shared is None else f"{shared}; {own} clients have their own"
