"""Buy privacy truthfully, then train under exactly those contracts.

>>> import scipy.stats
>>> import jsam
>>> market = jsam.Market(sensitivities=[0.1, 0.4, 0.8], prior=scipy.stats.uniform(0, 1))
>>> contract = jsam.plan(market, jsam.JSAM(loss_weight=20.0))
>>> bool((contract.payments >= market.sensitivities * contract.epsilons).all())
True

Names are loaded when they are first used, so that the command line can answer an interrupt from its first moment.
"""

from __future__ import annotations

from jsam.errors import InputError, JsamError

TYPE_CHECKING = False  # as in typing, which takes longer to load than all of this module

if TYPE_CHECKING:
    from jsam import mechanism as mechanism
    from jsam.mechanism.audit import AuditReport, audit
    from jsam.mechanism.budget.loss_weight import BudgetPlan, loss_weight_for_budget
    from jsam.mechanism.contract import Contract
    from jsam.mechanism.families import BBM, FSBM, JSAM, JSAMCI, USBM, EvenJSAM, plan
    from jsam.mechanism.market import Market
    from jsam.mechanism.priors import EmpiricalPrior, parse_prior
    from jsam.mechanism.registry import mechanism_named

__version__ = "0.1.0"

_HOMES = {
    "AuditReport": "audit",
    "audit": "audit",
    "BudgetPlan": "budget.loss_weight",
    "loss_weight_for_budget": "budget.loss_weight",
    "Contract": "contract",
    "Market": "market",
    "BBM": "families",
    "EvenJSAM": "families",
    "FSBM": "families",
    "JSAM": "families",
    "JSAMCI": "families",
    "USBM": "families",
    "mechanism_named": "registry",
    "plan": "families",
    "EmpiricalPrior": "priors",
    "parse_prior": "priors",
}

__all__ = [
    "BBM",
    "FSBM",
    "JSAM",
    "JSAMCI",
    "USBM",
    "AuditReport",
    "BudgetPlan",
    "Contract",
    "EmpiricalPrior",
    "EvenJSAM",
    "InputError",
    "JsamError",
    "Market",
    "__version__",
    "audit",
    "loss_weight_for_budget",
    "mechanism_named",
    "parse_prior",
    "plan",
]


if not TYPE_CHECKING:  # a type checker would take any name at all for one of ours

    def __getattr__(name: str) -> object:
        import importlib

        if name == "mechanism":
            return importlib.import_module("jsam.mechanism")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"jsam.mechanism.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
