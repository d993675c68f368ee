"""The command line: one thin module a command, one place for output and errors."""

from jsam.cli.app import main

__all__ = ["main"]
