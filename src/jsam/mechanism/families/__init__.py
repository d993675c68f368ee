"""The mechanisms, each a small file: what range of selection it considers, and whom.

To add one, put a subclass of `RangeMechanism` with a `label` into a file here; nothing else has to name it.
"""

from jsam.mechanism.families.base import Mechanism, RangeMechanism, Responses, plan
from jsam.mechanism.families.bbm import BBM
from jsam.mechanism.families.complete_information import JSAMCI
from jsam.mechanism.families.even import EvenJSAM
from jsam.mechanism.families.fsbm import FSBM
from jsam.mechanism.families.jsam import JSAM
from jsam.mechanism.families.usbm import USBM

__all__ = [
    "BBM",
    "FSBM",
    "JSAM",
    "JSAMCI",
    "USBM",
    "EvenJSAM",
    "Mechanism",
    "RangeMechanism",
    "Responses",
    "plan",
]
