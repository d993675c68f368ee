"""The program: what the command `jsam` and `python -m jsam` start.

Its first statements come before every other import. While the program loads, an interrupt must not become an exception:
half-loaded modules turn one into tracebacks of their own. There is nothing to clean up yet, so it ends the process.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself would first load enum, and much else
import os
import sys

_EXIT_STOPPED = 130


def _stop(*_: object) -> None:
    os.write(2, b"jsam: stopped\n")
    os._exit(_EXIT_STOPPED)


def _on_interrupt(handler: object) -> None:
    # An interrupt that the parent has ignored (nohup, a background job) stays ignored.
    if _signal.getsignal(_signal.SIGINT) in (_signal.default_int_handler, _stop):
        _signal.signal(_signal.SIGINT, handler)


_on_interrupt(_stop)


def main() -> int:
    """Load, then run one command: from then on an interrupt is an exception, and commands can tell how to go on."""
    from jsam.cli.app import main as run

    try:
        _on_interrupt(_signal.default_int_handler)
        code = run()
        # All is done and written; what is left is the interpreter's own end.
        _on_interrupt(_stop)
    except KeyboardInterrupt:
        _on_interrupt(_stop)
        sys.stderr.write("jsam: stopped\n")
        return _EXIT_STOPPED
    return code


if __name__ == "__main__":
    sys.exit(main())
