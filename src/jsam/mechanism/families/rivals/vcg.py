"""VCG over the same loss: the selection that costs clients least, and the payments that make it truthful."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.families.jsam import JSAM
from jsam.mechanism.market import Market
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.solver.payments import Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class VCG(JSAM):
    """The minimum of η · loss + Σ c ε over JSAM's range, at the reported costs themselves; Clarke's payments.

    It claims to be truthful and rational. A client is paid c ε plus what the others' minimum, loss included, is worse
    off without it. Clarke's pivot compares with its absence. Where a client would be kept even at the dearest report
    that the prior allows, that report takes the place of absence: this is the least that VCG can pay, and nobody needs
    more. What is paid has no bound. A budget becomes a loss weight from the prior alone, as for the others, by the
    payments that are to be expected. Σ v ε has the same mean as they, but as the selection goes by c it may vary much
    more. A textbook rule (Vickrey, Clarke, Groves).
    """

    label: ClassVar[str] = "vcg"
    optimal: ClassVar[bool] = False
    efficient: ClassVar[bool] = True

    def price(self, cost: VirtualCost) -> VirtualCost:
        return VirtualCost(prior=cost.prior, bottom=cost.bottom, top=cost.top, affine=(0.0, 1.0))

    def check_unequal_data(self) -> None:
        """Refuse them: other than JSAM, whose range this is, nothing here counts sizes."""
        RangeMechanism.check_unequal_data(self)

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        self.refuse_sizes(market)
        contract = super().plan(market, payments=payments, progress=progress)
        # The runner-up was measured by c, the contract is by what is paid.
        return replace(contract, virtual_costs=market.virtual_costs, runner_up=None)
