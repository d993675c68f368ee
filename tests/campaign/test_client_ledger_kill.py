"""A client that answers is killed: before every single step that it takes towards the disk, and at random moments."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.round_request import RoundRequest
from jsam.privacy import Release
from tests.campaign.offers import offer
from tests.soak.client_ledger_kills import soak

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

# Everything through which the books reach the disk, and through which a reply leaves.
MODEL = "a" * 64
STEPS = ("open", "write", "fsync", "replace", "ftruncate", "mkdir", "close")


def noisy(release: Release) -> bytes:
    return os.urandom(16)


def answered_until_step(folder: Path, step: int) -> tuple[bytes, bool]:
    """A process that answers round 0 and dies before its step-th call to the system: what left it, and if it died."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            _die_before(step)
            reply = ClientLedger(folder).answer(
                RoundRequest.of_terms(offer(), round=0, multiplicity=2), noisy, model=MODEL
            )
            os.write(writer, reply)
            code = 0
        os._exit(code)
    os.close(writer)
    with open(reader, "rb") as pipe:
        left = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return left, code != 0


def _die_before(step: int) -> None:
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))


def test_killed_before_any_step_and_again_before_any_other_one_value_leaves_and_is_spent_once(tmp_path: Path) -> None:
    deaths, replies, unanswered, step = 0, 0, 0, 1
    died = True
    while died:
        folder = tmp_path / str(step)
        ClientLedger(folder).accept(offer())
        first, died = answered_until_step(folder, step)
        deaths += died
        # The next process dies in its turn, at moments that depend on where the first one did.
        second, _ = answered_until_step(folder, 1 + (7 * step) % 23)
        ClientLedger(folder).check()  # a kill is never taken for damage
        (entry,) = ClientLedger(folder).statement()
        unanswered += entry.releases == 1 and entry.payment == 0
        last = ClientLedger(folder).answer(RoundRequest.of_terms(offer(), round=0, multiplicity=2), noisy, model=MODEL)
        values = {value for value in (first, second, last) if value}
        assert len(values) == 1, f"two values of one round left, after a death before step {step}"
        replies += bool(first) + bool(second)
        (entry,) = ClientLedger(folder).statement()
        assert (entry.releases, entry.participations, entry.overspent) == (1, 2, False)
        step += 1
    # It did die in between, also with the release recorded and not answered; and some replies did leave before.
    assert deaths > 15
    assert unanswered > 3
    assert replies > 3


def test_killed_before_any_step_of_an_acceptance_the_terms_are_there_in_full_or_not_at_all(tmp_path: Path) -> None:
    died, step = True, 1
    while died:
        folder = tmp_path / str(step)
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                _die_before(step)
                ClientLedger(folder).accept(offer())
                code = 0
            os._exit(code)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        ledger = ClientLedger(folder)
        ledger.check()
        known = bool(ledger.statement())
        assert known or died
        ledger.accept(offer())
        assert ledger.terms("spring") == offer()
        ledger.answer(RoundRequest.of_terms(offer(), round=0, multiplicity=1), noisy, model=MODEL)
        step += 1
    assert step > 10


def test_killed_at_random_moments_no_round_has_a_second_value_and_nothing_is_overspent(tmp_path: Path) -> None:
    result = soak(12, tmp_path, seed=5)
    assert result["kills"] >= 12
    assert result["replies_that_left"] > 0
