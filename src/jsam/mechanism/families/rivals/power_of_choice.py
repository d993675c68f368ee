"""Power-of-choice: who is drawn depends on the run, so ε must be priced for the worst."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jsam.errors import InputError
from jsam.mechanism.contract import Contract
from jsam.mechanism.families.base import RangeMechanism
from jsam.mechanism.market import Market
from jsam.mechanism.solver.allocation import Rule
from jsam.mechanism.solver.payments import Progress
from jsam.mechanism.solver.profiles import Profiles, equal_probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerOfChoice(RangeMechanism):
    """Each round the M with the largest current loss of some that are drawn by data share; ε for the worst that can be.

    The rule is that of Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning"
    (2022), which pays nobody and adds no noise; the contract is ours. Who is drawn how often is not known before
    training, and a client could be drawn in every round: N/M times as often as the mean. So its noise must cover that,
    and the noise weight of the contract is Q N/M. Prices, payments and truthfulness are USBM's.

    The contract is all that there is of it. Training here draws a schedule first and gives each client noise for just
    those draws; so under this contract it draws by data share, as under USBM, and the bound is on the safe side.
    Selection by current loss would need noise for all rounds, and would give away losses, which are computed from
    records and which no noise covers. BBM is its frozen form: the largest losses of the first model.
    """

    label: ClassVar[str] = "power-of-choice-M"

    num_selected: int

    @property
    def name(self) -> str:
        return self.label.replace("-M", f"-{self.num_selected}")

    def profiles(self, num_clients: int) -> Profiles:
        if not 1 <= self.num_selected <= num_clients:
            raise InputError(
                f"{self.name} draws {self.num_selected} of {num_clients} clients in a round; 1 to {num_clients} are"
                " possible"
            )
        return equal_probabilities(num_clients, num_clients)

    def rule(self, num_clients: int) -> Rule:
        rule = super().rule(num_clients)
        worst = num_clients / self.num_selected
        return replace(rule, weights=replace(rule.weights, noise_weight=rule.weights.noise_weight * worst))

    def plan(self, market: Market, *, payments: bool = True, progress: Progress | None = None) -> Contract:
        self.refuse_sizes(market)
        contract = super().plan(market, payments=payments, progress=progress)
        return replace(contract, weights=self.rule(market.num_clients).weights)
