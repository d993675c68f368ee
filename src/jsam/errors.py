"""What can go wrong, in words a user can act on.

Every message says what was given, where, and what is allowed. The command line prints it as one line and exits with 2.
"""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """How to get an extra, in words. Never `pip install jsam`: that name on the public index is another project's."""
    return f"install jsam with its extra '{extra}', e.g. pip install '.[{extra}]' in a checkout"


class JsamError(Exception):
    """Base of all errors that jsam raises on purpose."""


class InputError(JsamError, ValueError):
    """An argument, option or file that cannot be used; the message says what is allowed."""


class NotSupportedError(InputError):
    """A request that makes sense but that this version does not compute."""


class UnequalDataError(NotSupportedError):
    """A mechanism or budget that knows nothing of clients with different numbers of samples."""


class DivergentPaymentError(InputError):
    """A prior whose tail is so heavy that a client who is never dropped would be owed an infinite amount."""


class NotFiniteError(InputError, OverflowError):
    """A market whose ε or payments are no finite numbers, as where they get too large for floating-point."""


class ReportError(InputError):
    """One client's report that cannot be used; `client` is its position."""

    def __init__(self, client: int, message: str) -> None:
        super().__init__(message)
        self.client = client


class RunFolderError(InputError):
    """A folder that is not the run that was meant: missing, of another version, or of another configuration."""


class TrainingStoppedError(JsamError):
    """Training cannot go on; everything up to the named round is kept."""


class TrainingWarning(UserWarning):
    """A run that will work as asked, though probably not as hoped."""


class DataError(InputError):
    """A data set that cannot be used, or a data folder that cannot be written."""


class MissingDataError(DataError):
    """A data set that is in no data folder and could not be fetched."""


class ChecksumError(DataError):
    """A file whose content is not the published one."""


class DownloadError(DataError):
    """One source of a data set failed; the next one may still work."""


class UnsafePickleError(DownloadError):
    """A pickle that holds more than plain arrays; nothing of it was run."""
