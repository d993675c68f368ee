"""A check whose inputs a server chose, in a process of its own with limits on time and memory.

A number of clients, a prior or a probability can be made up on which the search for η takes hours or all memory. The
process that judges an offer holds the client's books meanwhile, so it must be able to give up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from jsam.flower.terms import Terms
from jsam.flower.verification import Check, Status, check_loss_weight, loss_weight_unchecked

SECONDS = 60.0  # it takes about one, with a budget's probability up to ten
MEMORY = 4 * 2**30


def check_loss_weight_apart(terms: Terms, *, seconds: float = SECONDS) -> Check:
    """As `check_loss_weight`; what cannot be computed within the limits is not checked."""
    if terms.public.budget is None:
        return check_loss_weight(terms)
    # Without -P a file in the folder of the moment could stand in for a module.
    command = [sys.executable, "-P", "-m", "jsam.flower.apart", str(round(seconds) + 1)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=terms.to_json().encode(), capture_output=True, timeout=seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return loss_weight_unchecked(f"it takes more than {seconds:g} s here")
    try:
        found = json.loads(done.stdout)
        return Check(name=found["name"], status=Status(found["status"]), message=found["message"])
    except (ValueError, KeyError, TypeError):
        return loss_weight_unchecked("it could not be computed here")


def _limit(seconds: int) -> None:
    """For a process whose parent was killed, too."""
    try:
        import resource
    except ImportError:  # a system without limits; the parent's clock remains
        return
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, MEMORY)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    _limit(int(sys.argv[1]))
    sys.stdout.write(json.dumps(check_loss_weight(Terms.from_json(sys.stdin.buffer.read())).as_dict()))
