"""The lock files of deployments: every package of the extra, at the pinned version, with the hash of its file."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.conftest import require

CHECKOUT = Path(__file__).parents[1]
LOCKS = ("requirements-flower.lock", "requirements-torch.lock")
PACKAGE = re.compile(r"([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")


def locked(name: str) -> dict[str, str]:
    """The packages of a lock file with their versions."""
    return dict(PACKAGE.findall((CHECKOUT / name).read_text(encoding="utf-8")))


def own_requirements(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for with this extra and those that it names."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pending, asked = [extra], [Requirement(text) for text in project["dependencies"]]
    while pending:
        for text in project["optional-dependencies"][pending.pop()]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                pending += requirement.extras
            else:
                asked.append(requirement)
    return asked


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_a_comment_or_part_of_a_package_with_its_hash(name: str) -> None:
    head, _, rest = (CHECKOUT / name).read_text(encoding="utf-8").partition("\n")
    assert head.startswith("# ")
    assert PACKAGE.sub("", rest) == ""
    assert list(locked(name)) == sorted(locked(name))


def test_versions_are_those_that_the_tests_run_with() -> None:
    pinned = dict[str, SpecifierSet]()
    for line in (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            pinned[canonicalize_name(requirement.name)] = requirement.specifier
    # The constraints have no pins for the CUDA packages of one build of torch.
    assert locked(LOCKS[0]).keys() <= pinned.keys()
    assert {"torch", "triton"} <= pinned.keys() & locked(LOCKS[1]).keys()
    for name, version in {**locked(LOCKS[0]), **locked(LOCKS[1])}.items():
        assert name not in pinned or pinned[name].contains(version), name


def test_all_that_the_extra_needs_is_locked() -> None:
    """Directly, and by what the installed packages ask for in turn."""
    require("flwr", extra="flower")
    packages = {**locked(LOCKS[0]), **locked(LOCKS[1])}
    pending, seen = own_requirements("flower"), set[tuple[str, str]]()
    assert {"torch", "flwr", "numpy"} <= {requirement.name for requirement in pending}
    while pending:
        requirement = pending.pop()
        name = str(canonicalize_name(requirement.name))
        assert requirement.specifier.contains(packages[name], prereleases=True), requirement
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                asked = map(Requirement, requires(name) or ())
                pending += [each for each in asked if each.marker is None or each.marker.evaluate({"extra": extra})]
    assert len(seen) > 60


def test_without_torchs_own_file_only_torch_and_its_cuda_packages_are_missing() -> None:
    names = locked(LOCKS[1]).keys()
    assert "torch" in names
    assert all(re.fullmatch(r"torch|triton|(nvidia|cuda)-.*", name) for name in names)
    assert not names & locked(LOCKS[0]).keys()
