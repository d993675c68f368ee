"""Buy privacy truthfully, then train under exactly those contracts.

>>> import scipy.stats
>>> import jsam
>>> market = jsam.Market(sensitivities=[0.1, 0.4, 0.8], prior=scipy.stats.uniform(0, 1))
>>> contract = jsam.plan(market, jsam.JSAM(loss_weight=20.0))
>>> bool((contract.payments >= market.sensitivities * contract.epsilons).all())
True
"""

from jsam.errors import InputError, JsamError
from jsam.mechanism.audit import AuditReport, audit
from jsam.mechanism.budgeting import BudgetPlan, loss_weight_for_budget
from jsam.mechanism.contract import Contract
from jsam.mechanism.market import Market
from jsam.mechanism.mechanisms import BBM, FSBM, JSAM, JSAMCI, USBM, mechanism_named, plan
from jsam.mechanism.priors import EmpiricalPrior, parse_prior

__version__ = "0.1.0"

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
