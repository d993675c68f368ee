"""What ties a checkpoint to its run: the releases in its ledger, and one word for configuration and contract."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from jsam.errors import RunFolderError
from jsam.privacy import read_ledger
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.run_folder import RunFolder


def check_recorded(folder: RunFolder, plan: NoisePlan, rounds_done: int) -> None:
    """Every release that a checkpoint has applied must be in the ledger, or spent privacy would be forgotten.

    Of a run that is over only whole rounds are looked for: the report on it names every single difference.
    """
    releases = read_ledger(folder.ledger) if folder.ledger.exists() else ()
    recorded = {(release.round, release.client): release for release in releases}
    rounds = {release.round for release in releases}
    goes_on = rounds_done < plan.settings.rounds
    for index in range(rounds_done):
        due = plan.releases(plan.schedule.round(index)) if goes_on else ()
        other = next((release for release in due if recorded.get((index, release.client)) != release), None)
        if index in rounds and other is None:
            continue
        wrong = f"lacks round {index}" if index not in rounds else f"is not as it was in round {index}"
        raise RunFolderError(
            f"{folder.ledger} {wrong}, which the checkpoint beside it has applied; restore it to resume"
        )


def fingerprint_of(config: Mapping[str, Any], folder: RunFolder) -> str:
    """Configuration, contract and schedule in one word: a checkpoint must carry the same."""
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    for path in (folder.contract, folder.schedule):
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
