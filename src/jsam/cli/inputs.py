"""From files and options to a market and a mechanism that is ready to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsam.cli.clients import ClientTable, read_clients
from jsam.cli.options import EconomyOptions
from jsam.cli.output import progress_bar, say
from jsam.errors import InputError
from jsam.mechanism.families import USBM
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.registry import mechanism_named

if TYPE_CHECKING:
    from jsam.mechanism.budget.loss_weight import BudgetPlan

COMPENSATED = "usbm-compensated"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The clients of one run, and what was asked about them."""

    table: ClientTable
    market: Market
    options: EconomyOptions

    @classmethod
    def read(cls, clients: str, options: EconomyOptions) -> Inputs:
        options.check()
        table = read_clients(clients)
        with progress_bar("Looking at the prior", None):
            market = table.market(options.prior)
        if table.note:
            say(table.note)
        return cls(table=table, market=market, options=options)

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
        from jsam.mechanism.budget.loss_weight import loss_weight_for_budget

        try:
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
        except OverflowError as error:
            raise self.too_large(mechanism.name) from error
        except InputError as error:
            if type(error) is not InputError or "budget" in str(error):
                raise
            # It may speak of a loss weight, which the user did not give.
            raise InputError(
                f"--budget {self.options.budget:g} cannot be turned into a loss weight: {error}"
            ) from error
        return mechanism.with_loss_weight(plan.loss_weight), plan

    def too_large(self, name: str, loss_weight: float | None = None) -> InputError:
        """The error for numbers beyond floating point: which of them is to blame, only the user can tell."""
        options, reports = self.options, self.market.sensitivities
        blamed = [f"sensitivities from {reports.min():g} to {reports.max():g}"]
        if options.budget is not None:
            blamed.append(f"--budget {options.budget:g}")
        if loss_weight is not None:
            blamed.append(f"loss weight {loss_weight:g}")
        blamed += [f"noise weight {options.noise_weight:g}", f"bias weight {options.bias_weight:g}"]
        if options.max_epsilon is not None:
            blamed.append(f"--max-epsilon {options.max_epsilon:g}")
        return InputError(
            f"{name} gets too large for floating-point numbers, with {', '.join(blamed)}; use other units"
        )

    @property
    def prior_text(self) -> str:
        """The prior as the user gave it."""
        shared, own = self.options.prior, self.table.num_own_priors
        if not own:
            return str(shared)
        return f"{own} clients have their own" if shared is None else f"{shared}; {own} clients have their own"
