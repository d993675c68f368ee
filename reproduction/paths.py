"""Where specifications are read and results are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jsam.errors import InputError

_SPECS = Path("reproduction/specs")
_RESULTS = Path("results/paper")
PLANS = "plans"
PROGRAM = "python -m reproduction"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders of a checkout. New runs go to `output`; what `results` holds already is not made again."""

    home: Path
    specs: Path
    results: Path
    output: Path

    @classmethod
    def of(cls, root: Path | str | None = None, output: Path | str | None = None, *, read_only: bool = False) -> Places:
        """The checkout at `root`; else the one that holds the working folder, or this file.

        With `read_only` nothing will be written to `output`, so it must be there.
        """
        starts = [Path(root)] if root is not None else [Path.cwd(), *Path.cwd().parents, Path(__file__).parents[1]]
        home = next((start for start in starts if (start / _SPECS).is_dir()), None)
        if home is None:
            where = f"{starts[0]} has no folder {_SPECS}" if root is not None else f"no folder {_SPECS} was found"
            raise InputError(f"{where}; run this in a checkout of jsam, or name one with --root")
        if output is not None:
            _check_output(Path(output), read_only=read_only)
        results = home / _RESULTS
        return cls(home=home, specs=home / _SPECS, results=results, output=results if output is None else Path(output))

    @property
    def chosen(self) -> Path:
        return self.results / "chosen.toml"

    @property
    def plans(self) -> Path:
        return self.results / PLANS

    @property
    def new_plans(self) -> Path:
        """Where what a run finds of plans goes: with its results."""
        return self.output / PLANS

    @property
    def planner(self) -> Path:
        return self.results / "planner"


def _check_output(output: Path, *, read_only: bool) -> None:
    if output == Path():  # what an empty name means too, as of a variable that is not set
        raise InputError("output is empty, or the folder you are in; name a new one")
    if read_only and not output.is_dir():
        raise InputError(f"output {str(output)!r} is not a folder")
    if output.exists() and not output.is_dir():
        raise InputError(f"output {str(output)!r} is a file; name a folder")
