"""Write the lock files of a deployment: the version and the hash of every package that `jsam-fl[flower]` needs.

pip resolves the extra under constraints.txt and reports which file it would install for each package; the hash is that
of this one file. So the lock files are for the Python and the platform that this program runs on.

Only pip's default index is asked (or the one that PIP_INDEX_URL names), never a folder of local builds: the hash of a
file that others cannot get would be of no use to them. torch and the CUDA packages that its build on that index brings
have a file of their own, because who installs another build of torch needs none of them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
OWN_NAME = "jsam-fl"
OF_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
LOCAL_SOURCES = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")


def main() -> None:
    packages = sorted(filter(None, map(_line, resolved())), key=_name)
    version = ".".join(platform.python_version_tuple()[:2])
    where = f"{platform.python_implementation()} {version} on {platform.system()} {platform.machine()}"
    for name, about, lines in (
        ("flower", "All that jsam-fl[flower] needs but torch", [line for line in packages if not _is_of_torch(line)]),
        ("torch", "torch and its CUDA packages", [line for line in packages if _is_of_torch(line)]),
    ):
        head = f"# {about}, for {where}. Written by `make lock`.\n"
        path = CHECKOUT / f"requirements-{name}.lock"
        path.write_text(head + "".join(lines), encoding="utf-8")
        print(f"wrote {path.name}: {len(lines)} packages")  # noqa: T201


def resolved() -> list[dict[str, Any]]:
    """What pip would install into an empty environment."""
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL_SOURCES}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "-c", "constraints.txt", ".[flower]"],
            cwd=CHECKOUT,
            env={**environment, "PIP_CONFIG_FILE": os.devnull},
            check=True,
        )
        return list(json.loads(report.read_text(encoding="utf-8"))["install"])


def _line(package: dict[str, Any]) -> str:
    """A requirement with its hash, as pip reads it; empty for jsam-fl itself, which comes as a wheel."""
    name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
    if name == OWN_NAME:
        return ""
    sha256 = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={package['metadata']['version']} \\\n    --hash=sha256:{sha256}\n"


def _name(line: str) -> str:
    return line.partition("==")[0]


def _is_of_torch(line: str) -> bool:
    return OF_TORCH.fullmatch(_name(line)) is not None


if __name__ == "__main__":
    main()
