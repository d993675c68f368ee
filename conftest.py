"""What is not collected where it cannot be imported."""

from __future__ import annotations

from importlib.util import find_spec

# Triton comes with the CUDA builds of torch only.
collect_ignore_glob = [] if find_spec("triton") else ["src/jsam/training/clipping/gpu/[abck]*.py"]
