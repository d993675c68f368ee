"""What of a run's folder may be shown to others, why, and a copy that holds nothing else. Needs no torch and no data.

The contracts cover what is computed from the noisy updates: the model, and whatever follows from it without another
look at the records. Norms, losses and digests that were computed from the records themselves are covered by nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsam.errors import JsamError, RunFolderError
from jsam.files import sync_folder, write_atomically
from jsam.mechanism.registry import find_description
from jsam.privacy import Ledger, read_ledger
from jsam.runs.noise_key import refuse_open_key
from jsam.runs.run_folder import RunFolder, write_json
from jsam.runs.settings import NOT_PRIVATE

if TYPE_CHECKING:
    from jsam.runs.settlement import Settlement

PUBLICATION_FORMAT = 1
YES, IN_PART, ON_REQUEST, NO = "yes", "in part", "if you ask", "no"


@dataclass(frozen=True)
class File:
    """One file of a folder. `publish` is whether the copy holds it."""

    name: str
    publish: str
    why: str


_RECORDS = "computed from the records without noise"
_MONEY = "no record is in it, but sensitivities, payments, or an ε from which a sensitivity can be computed"

_BOTH = (
    File("model.pt", YES, "made of noisy updates alone; the contracts cover it"),
    File(
        "summary.json",
        IN_PART,
        "accuracy and loss follow from the model and the test records; they are copied where the test set is public",
    ),
    File(
        "ledger.jsonl",
        ON_REQUEST,
        "noise, draws and numbers of records, none computed from what a record holds; everybody can recompute what was "
        "spent from it, and from each ε the client's sensitivity",
    ),
    File("contract.json", NO, _MONEY),
    File("audit.json", NO, _MONEY),
    File("schedule.jsonl", NO, "no record is in it; the ledger says who was drawn"),
)
_SIMULATED = (
    File("rules.toml", NO, "no record is in it; prior, weights and budget are for whoever ran it to tell"),
    File("noise.key", NO, "whoever has it can take the noise off; never copy it, delete it when the run is complete"),
    File(
        "metrics.jsonl",
        NO,
        f"training loss, norms and the share clipped are {_RECORDS}; the noise's norm tells of the noise",
    ),
    File("config.json", NO, f"the digest of data and partition is {_RECORDS}: it confirms a guess of a record"),
    File(
        "checkpoint.pt", NO, "the weights are covered; beside them are the metrics' length and the digest's fingerprint"
    ),
    File("report.html", NO, f"shows noise to signal, which is {_RECORDS}, and the contract"),
    File("tensorboard/", NO, "the numbers of metrics.jsonl"),
)
_CAMPAIGN = (
    File("metrics.jsonl", NO, "no record is in it, but the names of clients that did not answer"),
    File("config.json", NO, "no record is in it, but each client's number of records"),
    File("published.json", YES, "published before the campaign began; it is not in the copy"),
    File("reports.json, offer-*.json, agreement.json, books.json, nodes.json", NO, _MONEY),
    File(
        "checkpoint.npz, replies/",
        NO,
        "noisy releases, each client's alone; the contracts cover them, nobody needs them",
    ),
    File("outcome.json", NO, "how the campaign ended, where a client may be named"),
    File("report.html", NO, "shows the contract"),
)


def files_of(*, simulated: bool) -> tuple[File, ...]:
    """Those of a simulated run, or those of a campaign's server."""
    return _BOTH + (_SIMULATED if simulated else _CAMPAIGN)


def publish(folder: Path | str, target: Path | str, settlement: Settlement, *, with_ledger: bool = False) -> Path:
    """Copy what may be shown of the run in `folder` to the new folder `target`; all of it, or no folder at all.

    `settlement` is that of the run (`settle`). A run whose contracts are not kept is refused, and one whose noise is
    known.
    """
    run, target = RunFolder(folder), Path(target)
    _refuse(run, target, settlement)
    part, placed = None, False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
        write_atomically(part / "model.pt", run.model.read_bytes())
        if with_ledger:
            with Ledger(part / "ledger.jsonl") as ledger:
                ledger.append(read_ledger(run.ledger))
        write_json(part / "publication.json", _publication(run, settlement, sorted(os.listdir(part))))
        # The files were made for this user alone; from here on everybody may read them.
        for file in part.iterdir():
            file.chmod(0o644)
        part.chmod(0o755)
        part.rename(target)
        placed = True
        sync_folder(target.parent)
    except OSError as error:
        if placed:
            shutil.rmtree(target, ignore_errors=True)
        raise JsamError(f"{target} could not be written ({error.strerror}); nothing is published") from error
    finally:
        if part is not None and part.exists():
            shutil.rmtree(part, ignore_errors=True)
    return target


def _refuse(run: RunFolder, target: Path, settlement: Settlement) -> None:
    if target.exists() or target.is_symlink():
        raise RunFolderError(f"{target} is there already; name a new folder")
    if run.path.resolve() in target.resolve().parents:
        raise RunFolderError(f"{target} lies in the run's folder, which is not to be published; name another place")
    if not (run.summary.exists() and run.model.exists()):
        raise RunFolderError(f"{run.path} is not complete; nothing is published (jsam resume goes on with it)")
    if settlement.settings.noise_seed is not None:
        raise RunFolderError(
            f"{run.path} is {NOT_PRIVATE} in its config.json, and can be taken off; nothing is published"
        )
    mechanism = find_description(settlement.contract.mechanism)
    if mechanism is not None and mechanism.chooses_by_records:
        raise RunFolderError(
            f"{run.path}: {settlement.contract.mechanism} chose clients by losses on their records, which no noise "
            "covers; nothing is published"
        )
    if not settlement.kept:
        raise RunFolderError(f"{run.path}: {settlement.lines()[0]}; nothing is published")
    refuse_open_key(run.noise_key)


def _publication(run: RunFolder, settlement: Settlement, copied: Iterable[str]) -> dict[str, Any]:
    """What the copy says about itself."""
    config, settings, report = run.read_config(), settlement.settings, settlement.report
    task = config.get("task") or {}
    public_test = bool(task)  # a data set by name; who brings their own may have taken the test records from clients
    summary = run.read(run.summary)
    words = "one record" if report.adjacency is None else report.adjacency.words
    largest = max((entry.bought for entry in report.clients), default=0.0)
    return {
        "jsam_publication": PUBLICATION_FORMAT,
        "guarantee": (
            "What is in this folder is (epsilon, delta)-differentially private for every client: epsilon is at most "
            f"{largest:.6g}, delta is {settings.delta:g}, for {words}."
        ),
        "epsilon": largest,
        "delta": settings.delta,
        "adjacency": settings.adjacency,
        "noise_from": settlement.noise,
        "dataset": config["data"].get("dataset"),
        "model": task.get("model") or task.get("dataset"),
        "mechanism": settlement.contract.mechanism,
        "clients": settlement.contract.num_clients,
        "clients_under_contract": settlement.contract.num_selected,
        "rounds": settings.rounds,
        "per_round": settings.per_round,
        "clip_norm": settings.clip_norm,
        "accuracy": summary.get("accuracy") if public_test else None,
        "loss": summary.get("loss") if public_test else None,
        "class_accuracy": summary.get("class_accuracy") if public_test else None,
        "files": [*copied, "publication.json"],
    }
