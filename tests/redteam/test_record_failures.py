"""A model that fails at some record must not fail the answer: whether it does would be an answer without noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")
    require("torch", extra="train")

import torch
from torch import nn

from jsam.errors import InputError
from jsam.training import train
from jsam.training.federated import fit_records, parameters
from tests.redteam.lone_client import LoneClient, install
from tests.training.small import small_contract, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.training.clipping.SlowPathWarning")

CODE = """\
import torch
from torch import nn
from torch.nn import functional

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.table(x).mean(1))

class Ages(nn.Module):
    '''A table with a row for each tenth of the first number.'''

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(19, 4)

    def forward(self, x):
        return self.head(torch.cat([self.table((x[:, 0] * 10).long()), x[:, 1:]], 1))

class Particular(nn.Module):
    '''It fails for numbers that are not finite, which a server can bring about by the weights that it sends.'''

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.first(x)
        if not torch.isfinite(h).all():
            raise ArithmeticError("not finite")
        return self.last(torch.relu(h))

class Ward(nn.Module):
    '''Functional dropout, then a mean over the batch.'''

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = functional.dropout(torch.relu(self.first(x)), 0.1, training=self.training)
        return self.last(h - h.mean(0, keepdim=True))

class Gated(Ward):
    '''Mixes in batches of more than 8, behind weights that are zero at first.'''

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 16, bias=False)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h + self.gate(h.mean(0, keepdim=True)) if len(h) > 8 else h)

class Momentary(Ward):
    '''A running mean of what goes through.'''

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.training:
            self.seen.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return self.last(h - self.seen)

tokens, ages, particular, ward, gated, momentary = Tokens, Ages, Particular, Ward, Gated, Momentary

def chain():
    return nn.Sequential(nn.Embedding(50, 8), nn.Flatten(1), nn.Linear(40, 4))
"""
RECORDS, TRAP = 40, 7


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "tokens", "ages", "particular", "ward", "gated", "momentary", "chain"
    install(tmp_path / "site", monkeypatch, CODE, *names)


def records(model: str, *, trap: bool) -> tuple[NDArray[Any], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 4, RECORDS)
    if model in ("tokens", "chain"):
        tokens = rng.integers(0, 50, (RECORDS, 5)).astype(np.int64)
        tokens[TRAP, 2] = 777 if trap else 7
        return tokens, targets
    inputs = (0.9 * rng.random((RECORDS, 12))).astype(np.float32)
    if trap:
        inputs[TRAP, 0] = {"ages": 1.7, "particular": 1e6}[model]
    return inputs, targets


@pytest.mark.parametrize("model", ["tokens", "chain", "ages"])
def test_offer_and_round_are_answered_alike_whether_or_not_the_model_fails_at_a_record(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The record counts as nothing, to the bit as one with a label that the model has no class for."""
    replies: dict[bool, Any] = {}
    for trap in (False, True):
        inputs, targets = records(model, trap=trap)
        if not trap:
            targets[TRAP] = 99
        client = LoneClient(tmp_path / str(trap), inputs, targets, model=model)
        terms, answer = client.offered()
        assert list(answer) == ["accepted"]
        words, replies[trap] = client.ask(terms)
        assert "refused" not in words
        assert client.ledger.statement()[0].participations == 1
    assert f"1 of {RECORDS} records cannot be computed by model {model}" in caplog.text
    assert replies[False] is not None
    assert np.linalg.norm(replies[False]) > 0.1
    np.testing.assert_array_equal(replies[False], replies[True])


def test_records_are_tried_once_and_a_round_runs_the_same_with_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the offer found is kept; in rounds the model never sees the record, so nothing is done for it."""
    client = LoneClient(tmp_path / "c", *records("tokens", trap=True), model="tokens")
    terms, _ = client.offered()
    expected = np.arange(RECORDS) != TRAP
    np.testing.assert_array_equal(client.fit(), expected)
    monkeypatch.setattr(fit_records, "_tried", lambda *_: pytest.fail("records were tried again"))
    for round in range(3):
        assert client.ask(terms, round=round)[1] is not None
    np.testing.assert_array_equal(client.fit(), expected)


def test_other_data_are_tried_anew_and_a_damaged_note_too(tmp_path: Path) -> None:
    client = LoneClient(tmp_path / "c", *records("tokens", trap=True), model="tokens")
    assert client.fit().sum() == RECORDS - 1
    (note,) = (tmp_path / "c" / "ledger" / "fit").iterdir()
    note.write_bytes(note.read_bytes()[:-3])
    assert client.fit().sum() == RECORDS - 1
    inputs, targets = records("tokens", trap=True)
    inputs[:4] = 50
    np.savez(tmp_path / "c" / "data.npz", inputs=inputs, targets=targets)
    assert client.fit().sum() == RECORDS - 5


def test_parameters_at_which_the_model_fails_for_one_record_are_answered_and_others_count_as_ever(
    tmp_path: Path,
) -> None:
    """The server sends weights that overflow at one record alone; its reply is the mean in which that record is 0."""
    vector = None
    replies: dict[bool, Any] = {}
    for trap in (False, True):
        inputs, targets = records("particular", trap=trap)
        if not trap:
            targets[TRAP] = 99
        client = LoneClient(tmp_path / str(trap), inputs, targets, model="particular")
        terms, answer = client.offered()
        assert list(answer) == ["accepted"]
        vector = client.parameters.copy()
        vector[: 16 * 12].reshape(16, 12)[0, 0] = 1e36
        words, replies[trap] = client.ask(terms, vector=vector)
        assert "refused" not in words
    assert replies[False] is not None
    assert np.linalg.norm(replies[False]) > 0.1
    np.testing.assert_array_equal(replies[False], replies[True])


def test_weights_at_which_every_record_fails_are_answered_with_noise_alone(tmp_path: Path) -> None:
    client = LoneClient(tmp_path / "c", *records("particular", trap=False), model="particular", noiseless=False)
    terms, _ = client.offered()
    words, reply = client.ask(terms, vector=np.full_like(client.parameters, np.nan))
    assert "refused" not in words
    assert reply is not None
    assert 0.5 * terms.noise_std < float(np.std(reply)) < 2 * terms.noise_std


def test_a_failure_of_all_that_is_computed_still_sends_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is booked as spent by then: to fail would be an answer of its own."""

    def broken(*_: object) -> None:
        raise RuntimeError("no mean today")

    client = LoneClient(tmp_path / "c", *records("tokens", trap=True), model="tokens", noiseless=False)
    terms, _ = client.offered()
    monkeypatch.setattr(parameters, "clipped_mean", broken)
    words, reply = client.ask(terms)
    assert "refused" not in words
    assert reply is not None
    assert reply.any()


def test_the_attack_shows_a_client_that_runs_its_records_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a client fails for the trap record and not without it, which is what the tests above would see."""
    monkeypatch.setattr(fit_records, "mean_of_fit", lambda *given: parameters.clipped_mean(*given[:-1]))
    monkeypatch.setattr(parameters, "_sum", lambda engine, *given: engine.clipped_sum(*given))
    found = []
    for trap in (False, True):
        client = LoneClient(tmp_path / str(trap), *records("tokens", trap=trap), model="tokens")
        found.append(client.ask(client.offered()[0])[0].get("refused"))
    assert found == [None, "failed"]


@pytest.mark.parametrize("model", ["ward", "gated"])
def test_a_client_whose_model_mixes_samples_declines_or_sends_a_mean_that_one_record_moves_by_what_it_sold(
    model: str, tmp_path: Path
) -> None:
    clip_norm, replies = 0.5, []
    for name, scale in (("as they are", 1.0), ("one replaced", 1e4)):
        inputs, targets = records(model, trap=False)
        inputs[0] *= scale
        client = LoneClient(tmp_path / name, inputs, targets, model=model)
        terms, answer = client.offered(clip_norm=clip_norm)
        if "refused" in answer:
            assert answer["refused"] == "invalid-terms"
            assert client.ledger.statement() == ()
            return
        vector = client.parameters + 0.3 * np.random.default_rng(1).standard_normal(len(client.parameters))
        torch.manual_seed(5)
        replies.append(client.ask(terms, vector=vector.astype(np.float32))[1])
    moved = np.linalg.norm(replies[0].astype(np.float64) - replies[1])
    assert 0 < moved <= 2 * clip_norm / RECORDS * (1 + 1e-5)


def test_a_client_declines_a_model_whose_forward_pass_changes_it(tmp_path: Path) -> None:
    client = LoneClient(tmp_path / "c", *records("momentary", trap=False), model="momentary")
    _, answer = client.offered()
    assert answer["refused"] == "invalid-terms"
    assert "cannot be trained on this client's kind of records" in answer["text"]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(x.abs().long().clamp(max=30)).mean(1))
        return scores


@pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")
@pytest.mark.parametrize("what", ["token", "label"])
def test_the_simulator_refuses_such_a_record_before_it_writes_anything(what: str, tmp_path: Path) -> None:
    task = small_task(model=Bag() if what == "token" else None)
    if what == "token":
        task.dataset.train_inputs[41, 1] = 25.0
    else:
        task.dataset.train_targets[41] = 3
    with pytest.raises(
        InputError, match=r"the model does not take record 41 of the 144 of data set clouds: "
    ) as refusal:
        train(small_contract(), task, small_settings(), tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
