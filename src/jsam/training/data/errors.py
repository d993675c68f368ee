"""What can go wrong with data sets; each message is one line that says what to do."""

from __future__ import annotations

from jsam.errors import InputError


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
