"""What a checkpoint holds: the model, the momentum, and where in the run they belong."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jsam.errors import RunFolderError
from jsam.files import write_atomically
from jsam.training.round_loop import Snapshot


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run has come: `velocity` is flat, in the order of the trainable parameters.

    `metrics_size` is the length of metrics.jsonl at that point, in bytes.
    """

    rounds_done: int = 0
    velocity: Tensor | None = None
    metrics_size: int = 0


def save_checkpoint(path: Path, snapshot: Snapshot, *, rounds_done: int, metrics_size: int, fingerprint: str) -> None:
    """Written beside its place and moved there: a kill leaves the checkpoint before, or this one."""
    content = {
        "model": dict(snapshot.weights),
        "velocity": snapshot.velocity,
        "rounds_done": rounds_done,
        "metrics_size": metrics_size,
        "fingerprint": fingerprint,
    }
    write_atomically(path, as_bytes(content))


def load_checkpoint(path: Path, model: nn.Module, fingerprint: str, device: torch.device) -> Progress:
    """Put the stored weights into `model`; a checkpoint of another configuration is refused."""
    try:
        content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if content["fingerprint"] != fingerprint:
            raise RunFolderError(
                f"{path} belongs to another configuration than the files beside it; restore them to resume"
            )
        model.load_state_dict(content["model"])
        return Progress(
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
