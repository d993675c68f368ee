"""For tests of a client's books: what is asked of them, what they say, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jsam.campaign.client.client_folder import ClientFolder
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.round_request import RoundRequest
from jsam.campaign.terms import Terms
from jsam.privacy import Release

MODEL, OTHER_MODEL = "a" * 64, "b" * 64


def noisy(release: Release) -> bytes:
    """As a computation with fresh noise: never twice the same."""
    return f"{release.round} {release.multiplicity} ".encode() + os.urandom(16)


def ask(terms: Terms, round: int, multiplicity: int = 1) -> RoundRequest:
    return RoundRequest.of_terms(terms, round=round, multiplicity=multiplicity)


def refused(action: Callable[[], object]) -> Reason:
    with pytest.raises(Refused) as caught:
        action()
    assert str(caught.value).startswith(caught.value.code)
    return caught.value.code


def folder_of(ledger: ClientLedger) -> Path:
    """The folder of books that are in one."""
    assert isinstance(ledger.storage, ClientFolder)
    return ledger.storage.path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }
