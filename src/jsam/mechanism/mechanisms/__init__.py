"""The mechanisms, each a small file: what range of selection it considers, and whom.

To add one, subclass `RangeMechanism`, say which profiles it chooses from, and register its name in `registry`.
"""

from jsam.mechanism.mechanisms.base import Mechanism, RangeMechanism, Responses, plan
from jsam.mechanism.mechanisms.bbm import BBM
from jsam.mechanism.mechanisms.complete_information import JSAMCI
from jsam.mechanism.mechanisms.fsbm import FSBM
from jsam.mechanism.mechanisms.jsam import JSAM
from jsam.mechanism.mechanisms.registry import mechanism_named, mechanism_names
from jsam.mechanism.mechanisms.usbm import USBM

__all__ = [
    "BBM",
    "FSBM",
    "JSAM",
    "JSAMCI",
    "USBM",
    "Mechanism",
    "RangeMechanism",
    "Responses",
    "mechanism_named",
    "mechanism_names",
    "plan",
]
