"""What the modules of a folder define: mechanisms, priors and noise rules are each known by their file alone."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def members_of(package: ModuleType) -> list[Any]:
    """Every value that stands in a module of the package, all of which are imported."""
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return [value for name in names for value in vars(importlib.import_module(name)).values()]
