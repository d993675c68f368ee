"""What is not collected where it cannot be imported, and Triton's kernels without a GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

# Interpreted, kernels are slow and right. Triton looks when a kernel is defined, so it must be said before any import.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Outside of Linux there is no Triton.
collect_ignore_glob = [] if find_spec("triton") else ["src/jsam/training/clipping/gpu/[abckl]*.py"]
