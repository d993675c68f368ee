"""Settings that hold for every test, and `require` for those that need more than the plain install."""

from __future__ import annotations

import importlib
import os
import signal
from types import ModuleType

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("repeatable")

# Some tests fork. A child that inherits torch's pool of threads without the threads waits for them forever.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Signals that whoever started the tests ignores (nohup, a shell's background job) would be ignored by the commands that
# tests interrupt as well. A handler that does nothing is not passed on.
for _number in (signal.SIGINT, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ())):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


def number_of(*, quick: int, full: int) -> int:
    """How many random cases a test tries: `full` under `make soak` (JSAM_FULL=1), else the first `quick` of them."""
    return full if os.environ.get("JSAM_FULL") == "1" else quick


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or skip saying which extra brings it; where JSAM_REQUIRE_ALL=1 (CI) its absence is a failure."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but cannot find one of its own imports is broken, not missing.
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        reason = f"{module} is not installed: pip install '.[{extra}]'"
        if os.environ.get("JSAM_REQUIRE_ALL") == "1":
            pytest.fail(f"{reason} (JSAM_REQUIRE_ALL=1 allows no skips)", pytrace=False)
        pytest.skip(reason, allow_module_level=True)
