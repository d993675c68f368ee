"""JSAM-CI: the server knows every sensitivity and pays exactly the cost. A yardstick, not a mechanism to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jsam.mechanism.families.jsam import JSAM
from jsam.mechanism.pricing.virtual_cost import VirtualCost


@dataclass(frozen=True, kw_only=True, eq=False)
class JSAMCI(JSAM):
    """JSAM with v := c and payments c ε. Clients would gain by exaggerating, so truthfulness is not claimed."""

    label: ClassVar[str] = "jsam-ci"
    truthful: ClassVar[bool] = False
    knows_sensitivities: ClassVar[bool] = True

    def price(self, cost: VirtualCost) -> VirtualCost:
        return VirtualCost(prior=cost.prior, bottom=cost.bottom, top=cost.top, affine=(0.0, 1.0))
