"""The metrics of a run for TensorBoard, beside their own file."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsam.errors import NotSupportedError


class TensorBoard:
    """All numbers of a run as TensorBoard scalars, in a folder of their own."""

    def __init__(self, folder: Path | str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise NotSupportedError("--tensorboard needs tensorboard: pip install tensorboard") from None
        self._writer: Any = module.SummaryWriter(log_dir=str(folder))

    def record(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics["round"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
