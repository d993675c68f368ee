"""What a checkpoint holds: the model, the momentum, and where in the run they belong."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jsam.errors import RunFolderError
from jsam.files import write_atomically


@dataclass(kw_only=True)
class TrainingState:
    """`rounds_done` updates have been applied; `velocity` is flat, in the order of the trainable parameters."""

    rounds_done: int
    velocity: Tensor | None
    metrics_size: int = 0
    weights: Mapping[str, Tensor] | None = None
    """As of `rounds_done`, where the model itself is already further on."""


def save_checkpoint(path: Path, model: nn.Module, state: TrainingState, fingerprint: str) -> None:
    """Written beside its place and moved there: a kill leaves the checkpoint before, or this one."""
    content = {
        "model": dict(model.state_dict() if state.weights is None else state.weights),
        "velocity": state.velocity,
        "rounds_done": state.rounds_done,
        "metrics_size": state.metrics_size,
        "fingerprint": fingerprint,
    }
    write_atomically(path, as_bytes(content))


def load_checkpoint(path: Path, model: nn.Module, fingerprint: str, device: torch.device) -> TrainingState:
    """Put the stored weights into `model`; a checkpoint of another configuration is refused."""
    try:
        content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if content["fingerprint"] != fingerprint:
            raise RunFolderError(
                f"{path} belongs to another configuration than the files beside it; restore them to resume"
            )
        model.load_state_dict(content["model"])
        return TrainingState(
            rounds_done=content["rounds_done"], velocity=content["velocity"], metrics_size=content["metrics_size"]
        )
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    except (RuntimeError, LookupError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise RunFolderError(
            f"{path} is damaged; delete it, and resume begins at round 1, repeats the same releases and ends the same"
        ) from error


def as_bytes(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
