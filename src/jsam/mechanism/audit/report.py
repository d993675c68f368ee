"""What an audit found, in sentences and in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["passed", "violated", "not claimed", "not checked"]


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One promise that is not kept; `message` is a whole sentence with client, numbers and tolerance."""

    check: str
    client: str | None
    value: float
    tolerance: float
    message: str

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "value": _plain(self.value)}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at: the worst value seen, at which client, and what would have been too much."""

    name: str
    status: Status
    value: float | None = None
    tolerance: float | None = None
    client: str | None = None
    message: str
    violations: tuple[Violation, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        stated = {name: value for name, value in vars(self).items() if name != "violations"}
        return {**stated, "value": _plain(self.value)}


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """All checks of one mechanism on one market. Gains are relative to the larger of the two payments compared."""

    mechanism: str
    claims_truthful: bool
    strict: bool
    num_clients: int
    num_audited: int
    worst_client: str  # who gains most by misreporting, or loses least where nobody gains
    worst_report: float
    worst_gain: float
    worst_relative_gain: float
    lowest_utility: float
    checks: tuple[Check, ...]

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(violation for check in self.checks for violation in check.violations)

    @property
    def ok(self) -> bool:
        return not self.violations

    def check(self, name: str) -> Check:
        """The check of that name."""
        return next(check for check in self.checks if check.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "mechanism": self.mechanism,
            "claims_truthful": self.claims_truthful,
            "strict": self.strict,
            "ok": self.ok,
            "num_clients": self.num_clients,
            "num_audited": self.num_audited,
            "worst_client": self.worst_client,
            "worst_report": _plain(self.worst_report),
            "worst_gain": _plain(self.worst_gain),
            "worst_relative_gain": _plain(self.worst_relative_gain),
            "lowest_utility": _plain(self.lowest_utility),
            "checks": [check.as_dict() for check in self.checks],
            "violations": [violation.as_dict() for violation in self.violations],
        }


def _plain(value: float | None) -> float | None:
    """JSON knows no infinity and no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)


def beyond(check: str, client: str | None, value: float, tolerance: float, message: str) -> list[Violation]:
    """A violation if the value is not within the tolerance; NaN is not."""
    if value <= tolerance:
        return []
    return [Violation(check=check, client=client, value=float(value), tolerance=tolerance, message=message)]


def passed_or_violated(
    name: str,
    violations: list[Violation],
    message: str,
    *,
    value: float | None = None,
    tolerance: float | None = None,
    client: str | None = None,
) -> Check:
    """A check that fails if there are violations; `message` is what it says when there are none."""
    worst = violations[0] if violations else None
    return Check(
        name=name,
        status="violated" if worst else "passed",
        value=worst.value if worst else value,
        tolerance=worst.tolerance if worst else tolerance,
        client=worst.client if worst else client,
        message=worst.message if worst else message,
        violations=tuple(violations),
    )


def judged(
    name: str,
    value: float,
    tolerance: float,
    *,
    fine: str,
    broken: str,
    client: str | None = None,
    at: str | None = None,
) -> Check:
    """A check of one number: it passes with the sentence `fine` up to the tolerance, and fails with `broken` above.

    A violation names `client`; a passed check names `at`, which is the same client unless given. NaN fails.
    """
    violations = beyond(name, client, value, tolerance, broken)
    return passed_or_violated(name, violations, fine, value=value, tolerance=tolerance, client=at or client)
