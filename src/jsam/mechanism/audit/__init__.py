"""Check a mechanism from the outside: nothing here shares code with the solver.

The mechanism is a black box that plans and responds; everything that it claims is derived again.
"""

from jsam.mechanism.audit.misreports import Probe, probe
from jsam.mechanism.audit.report import AuditReport, Check, Violation
from jsam.mechanism.audit.run import audit

__all__ = ["AuditReport", "Check", "Probe", "Violation", "audit", "probe"]
