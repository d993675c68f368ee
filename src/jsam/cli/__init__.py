"""The command line: one thin module a command, one place for output and errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; loading the program can be interrupted like the rest of it."""
    try:
        from jsam.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("jsam: stopped\n")
        return 130
