"""Where data sets live: the user's own folder first, then the cache folder of the platform."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder", "data_folders"]

VARIABLE = "JSAM_DATA_DIR"


def cache_folder() -> Path:
    """The platform's cache folder for jsam's data; XDG_CACHE_HOME wins on every platform."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg and Path(xdg).is_absolute():  # the XDG specification says that a relative path is to be ignored
        return Path(xdg) / "jsam" / "data"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        base = Path(local) if local else Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "jsam" / "data"


def data_folders() -> tuple[Path, ...]:
    """Folders to look in, in order; the first is also where new files are written."""
    own = os.environ.get(VARIABLE, "")
    return (Path(own).expanduser().absolute(), cache_folder()) if own else (cache_folder(),)
