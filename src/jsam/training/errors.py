"""What can go wrong while training."""

from __future__ import annotations

from jsam.errors import InputError, JsamError


class RunFolderError(InputError):
    """A folder that is not the run that was meant: missing, of another version, or of another configuration."""


class TrainingStoppedError(JsamError):
    """Training cannot go on; everything up to the named round is kept."""


class TrainingWarning(UserWarning):
    """A run that will work as asked, though probably not as hoped."""
