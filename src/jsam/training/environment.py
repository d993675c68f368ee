"""What the same numbers depend on besides the seed: device, library versions and the number of threads."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import jsam
from jsam.errors import InputError, RunFolderError


def device_named(name: str) -> torch.device:
    """The device, if this machine has it."""
    device = None
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; it must be cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= (device.index or 0):
            there = f"{count} CUDA devices" if count else "no CUDA device (or torch is built without CUDA)"
            raise InputError(f"device is {name!r} but this machine has {there}; use cpu")
    return device


def versions() -> dict[str, str]:
    return {"jsam": jsam.__version__, "torch": torch.__version__, "numpy": np.__version__}


def accelerator(device: torch.device) -> dict[str, str]:
    """What else decides how a GPU rounds: the card, and the libraries that its kernels come from."""
    if device.type != "cuda":
        return {}
    triton = importlib.import_module("triton").__version__ if importlib.util.find_spec("triton") else "none"
    return {
        "card": torch.cuda.get_device_name(device),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "triton": str(triton),
    }


def check_same(folder: Path, stored: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Refuse to go on with a run under other versions, or on another card, than it was begun with.

    They may round differently; a repeated round would then be a second, different release.
    """
    for name, value in here.items():
        if stored.get(name) != value:
            raise RunFolderError(
                f"{folder} was begun with {name} {stored.get(name)} and here is {value}; resume with the same "
                f"{'card' if name == 'card' else 'version'}"
            )


@contextlib.contextmanager
def threads_set_to(count: int) -> Iterator[None]:
    """Sums over threads round differently for another number of them."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
