"""What can go wrong, in words a user can act on.

Every message says what was given, where, and what is allowed. The command line prints it as one line and exits with 2.
"""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """How to get an extra. Not `pip install jsam[…]`: on the public index that name is another project's."""
    return f"install jsam with its extra '{extra}', e.g. pip install '.[{extra}]' in a checkout"


class JsamError(Exception):
    """Base of all errors that jsam raises on purpose."""


class InputError(JsamError, ValueError):
    """An argument, option or file that cannot be used; the message says what is allowed."""


class NotSupportedError(InputError):
    """A request that makes sense but that this version does not compute."""


class DivergentPaymentError(InputError):
    """A prior whose tail is so heavy that a client who is never dropped would be owed an infinite amount."""


class ReportError(InputError):
    """One client's report that cannot be used; `client` is its position."""

    def __init__(self, client: int, message: str) -> None:
        super().__init__(message)
        self.client = client
