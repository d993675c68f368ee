"""From files and options to a market and a mechanism that is ready to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsam.cli.clients import ClientTable, read_clients
from jsam.cli.options import EconomyOptions
from jsam.cli.output import progress_bar
from jsam.mechanism.market import Market
from jsam.mechanism.mechanisms import USBM, mechanism_named
from jsam.mechanism.mechanisms.base import RangeMechanism

if TYPE_CHECKING:
    from jsam.mechanism.budgeting import BudgetPlan

COMPENSATED = "usbm-compensated"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The clients of one run, and what was asked about them."""

    table: ClientTable
    market: Market
    options: EconomyOptions

    @classmethod
    def read(cls, clients: str, options: EconomyOptions) -> Setup:
        options.check()
        table = read_clients(clients)
        return cls(table=table, market=table.market(options.prior), options=options)

    def mechanism(self, name: str) -> RangeMechanism:
        """The mechanism of that name; under a budget its loss weight is still to be set."""
        options = self.options
        settings: dict[str, Any] = {
            "loss_weight": 1.0 if options.loss_weight is None else options.loss_weight,
            "noise_weight": options.noise_weight,
            "bias_weight": options.bias_weight,
            "max_selection_prob": options.max_selection_prob,
            "max_epsilon": options.max_epsilon,
        }
        if name == COMPENSATED:
            return USBM(selection_probs=self.table.selection_probs(), **settings)
        return mechanism_named(name, **settings)

    def within_budget(self, mechanism: RangeMechanism) -> tuple[RangeMechanism, BudgetPlan | None]:
        """The mechanism with the loss weight that the budget buys, if there is one."""
        if self.options.budget is None:
            return mechanism, None
        from jsam.mechanism.budgeting import loss_weight_for_budget

        with progress_bar(f"Budget of {mechanism.name}") as bar:
            plan = loss_weight_for_budget(
                mechanism,
                self.options.budget,
                prior=self.market.prior,
                num_clients=self.market.num_clients,
                probability=self.options.budget_probability,
                losses=self.market.losses,
                seed=self.options.seed,
                progress=bar.reach,
            )
        return mechanism.with_loss_weight(plan.loss_weight), plan

    @property
    def prior_text(self) -> str:
        """The prior as the user gave it."""
        shared, own = self.options.prior, self.table.num_own_priors
        if not own:
            return str(shared)
        return f"{own} clients have their own" if shared is None else f"{shared}; {own} clients have their own"
