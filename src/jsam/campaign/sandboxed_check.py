"""What a server chose and a client must compute, in a process of its own with limits on time and memory.

A number of clients, a prior or a probability can be made up on which the search for η takes hours or all memory. The
process that judges an offer holds the client's books meanwhile, so it must be able to give up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from jsam.campaign.terms import Terms
from jsam.campaign.verification import Check, Status, check_loss_weight, loss_weight_unchecked
from jsam.errors import InputError

SECONDS = 60.0  # it takes about one, with a budget's probability up to ten
PRIOR_SECONDS = 20.0
MEMORY = 4 * 2**30


def check_loss_weight_apart(terms: Terms, *, seconds: float = SECONDS) -> Check:
    """As `check_loss_weight`; what cannot be computed within the limits is not checked."""
    if terms.public.rules.budget is None:
        return check_loss_weight(terms)
    try:
        verdict = _apart("loss-weight", terms.to_json(), seconds)
        return Check(name=verdict["name"], status=Status(verdict["status"]), message=verdict["message"])
    except subprocess.TimeoutExpired:
        return loss_weight_unchecked(f"it takes more than {seconds:g} s here")
    except (ValueError, KeyError, TypeError):
        return loss_weight_unchecked("it could not be computed here")


def prior_support_apart(prior: str, *, seconds: float = PRIOR_SECONDS) -> tuple[float, float]:
    """The lowest and the highest sensitivity that a published prior allows; InputError if the prior is not a known one.

    A prior in a file is not accepted: it would name a file of this machine, and a server must not choose that.
    """
    from jsam.mechanism.priors import file_of_prior

    if file_of_prior(prior) is not None:
        raise InputError("the prior is in a file, which the rules do not hold")
    if prior.partition(":")[0].strip() == "uniform":  # arithmetic on two numbers
        return _support(prior)
    try:
        low, high = _apart("prior", prior, seconds)["support"]
        return float(low), float(high)
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise InputError("the prior is none that can be computed here") from error


def _support(prior: str) -> tuple[float, float]:
    from jsam.mechanism.priors import parse_prior

    low, high = parse_prior(prior).support()
    return float(low), float(high)


def _apart(task: str, given: str, seconds: float) -> Any:
    # Without -P a file in the folder of the moment could stand in for a module.
    command = [sys.executable, "-P", "-m", "jsam.campaign.sandboxed_check", task, str(round(seconds) + 1)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, input=given.encode(), capture_output=True, timeout=seconds, check=False, env=environment
    )
    return json.loads(done.stdout)


def _limit(seconds: int) -> None:
    """Limit time and memory of this process, also for the case that its parent is killed."""
    try:
        import resource
    except ImportError:  # a system without limits; the parent's clock remains
        return
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, MEMORY)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _main(task: str, seconds: int) -> None:
    _limit(seconds)
    given = sys.stdin.buffer.read().decode()
    if task == "prior":
        result: dict[str, Any] = {"support": _support(given)}
    else:
        result = asdict(check_loss_weight(Terms.from_json(given)))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
