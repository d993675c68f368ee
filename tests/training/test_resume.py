"""A killed run, resumed, ends bit for bit like one that was never interrupted; other folders are refused."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("torch", extra="train")

from jsam.errors import JsamError, RunFolderError
from jsam.training.recorded_run import resume, train
from jsam.training.task import Task
from tests.training.small import contents, run, small_contract, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

OPTIONS: dict[str, Any] = {"momentum": 0.5, "learning_rate_schedule": "cosine"}


class _Killed(BaseException):
    """Nothing in the library may catch this."""


def _task() -> Task:
    # Dropout: layers that draw at random must repeat their draws too.
    return small_task(dropout=0.3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, task=_task(), **OPTIONS)
    return contents(folder)


@pytest.mark.parametrize("stop", range(8))
def test_stopped_after_any_round_and_resumed_it_ends_the_same(
    tmp_path: Path, whole: dict[str, bytes], stop: int
) -> None:
    def kill(record: dict[str, Any]) -> None:
        if record["round"] == stop:
            raise _Killed

    with pytest.raises(_Killed):
        train(small_contract(), _task(), small_settings(**OPTIONS), tmp_path / "run", progress=kill)
    resume(tmp_path / "run", task=_task())
    assert contents(tmp_path / "run") == whole


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("at", [3, 11, 14, 17, 19, 23, 29])
def test_killed_at_a_write_and_resumed_it_ends_the_same(tmp_path: Path, whole: dict[str, bytes], at: int) -> None:
    """kill -9 from inside, right at the n-th write, flush or rename, and once more during the resumed run."""
    folder = tmp_path / "run"
    assert _killed_at(at, lambda: train(small_contract(), _task(), small_settings(**OPTIONS), folder))
    if not (folder / "config.json").exists():
        with pytest.raises(RunFolderError, match="not a run folder"):
            resume(folder, task=_task())
        train(small_contract(), _task(), small_settings(**OPTIONS), folder)
    else:
        _killed_at(at // 2, lambda: resume(folder, task=_task()))
        resume(folder, task=_task())
    assert {name: data for name, data in contents(folder).items() if not name.endswith(".part")} == whole


def _killed_at(call: int, work: Callable[[], object]) -> bool:
    """Run `work` in a fork that is killed at its `call`-th operation on a file; whether it got that far."""
    child = os.fork()
    if child == 0:
        left = call

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def operation(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return operation

        try:
            for name in ("fsync", "write", "replace", "ftruncate"):
                setattr(os, name, counted(getattr(os, name)))
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_a_complete_run_is_left_as_it_is(tmp_path: Path) -> None:
    first = run(tmp_path / "run", task=_task())
    before = contents(tmp_path / "run")
    again = resume(tmp_path / "run", task=_task())
    assert again.accuracy == first.accuracy
    assert contents(tmp_path / "run") == before


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    def intrude(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            with pytest.raises(JsamError, match="another process"):
                resume(tmp_path / "run", task=_task())

    train(small_contract(), _task(), small_settings(), tmp_path / "run", progress=intrude)


def _stopped(folder: Path) -> None:
    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 5:
            raise _Killed

    with pytest.raises(_Killed):
        train(small_contract(), _task(), small_settings(**OPTIONS), folder, progress=kill)


def _changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _configured(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: _changed(folder / "config.json", change)


SPOILT: list[tuple[Callable[[Path], object], str]] = [
    (_configured(lambda c: c["environment"].update(jsam="0.0.1")), "begun with jsam 0.0.1"),
    (_configured(lambda c: c["environment"].update(torch="9")), "begun with torch 9"),
    (_configured(lambda c: c.update(jsam_run=99)), "run format 99"),
    (_configured(lambda c: c["settings"].update(rounds=9)), "another configuration"),
    (_configured(lambda c: c["settings"].pop("seed")), "do not match this version's: seed"),
    (lambda f: _changed(f / "contract.json", lambda c: c["clients"][0].update(epsilon=9.0)), "another configuration"),
    (lambda f: (f / "config.json").unlink(), "not a run folder"),
    (lambda f: (f / "config.json").write_text("{"), "damaged"),
    (lambda f: (f / "schedule.jsonl").unlink(), "cannot be read"),
    (_configured(lambda c: c.pop("environment")), "lacks the object 'environment'"),
    (lambda f: (f / "checkpoint.pt").write_bytes(b"not torch"), r"damaged; delete it"),
    (lambda f: (f / "checkpoint.pt").write_bytes(b""), r"damaged; delete it"),
    (lambda f: (f / "ledger.jsonl").unlink(), "lacks round 0, which the checkpoint"),
    (lambda f: (f / "metrics.jsonl").write_bytes(b""), "shorter than the checkpoint says"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT, ids=[message for _, message in SPOILT])
def test_a_folder_of_another_version_or_configuration_is_refused_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "run"
    _stopped(folder)
    spoil(folder)
    before = contents(folder)
    with pytest.raises(JsamError, match=message) as caught:
        resume(folder, task=_task())
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_without_its_checkpoint_a_run_begins_again_and_ends_the_same(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """As the message about a damaged checkpoint promises: the releases are repeated, and recorded once."""
    _stopped(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    resume(tmp_path / "run", task=_task())
    assert contents(tmp_path / "run") == whole


def test_another_task_is_refused(tmp_path: Path) -> None:
    _stopped(tmp_path / "run")
    with pytest.raises(RunFolderError, match="begun with another task: num_clients was 6, now 5"):
        resume(tmp_path / "run", task=small_task(sizes=(10, 10, 10, 10, 10)))
    with pytest.raises(RunFolderError, match="task of your own"):
        resume(tmp_path / "run")


def test_a_trained_model_is_not_the_task_it_began_with(tmp_path: Path) -> None:
    """Handing over the half-trained model would train on from the wrong place; the digest of the weights notices."""
    task = _task()
    run(tmp_path / "other", task=task)
    _stopped(tmp_path / "run")
    with pytest.raises(RunFolderError, match="digest"):
        resume(tmp_path / "run", task=task)
