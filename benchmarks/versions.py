"""Which versions were measured; needs nothing, so that it runs where only torch is installed."""

from __future__ import annotations

import contextlib
import importlib
from importlib import metadata


def version_of(package: str) -> str | None:
    """Also of a package that only lies on the path."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        with contextlib.suppress(ImportError):
            return getattr(importlib.import_module(package), "__version__", None)
        return None
