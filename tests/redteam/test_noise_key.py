"""Taking the noise off a model with everything that others may know of its run: it must not come off.

The attacker knows the initial weights, the step and the noise's scale, and tries every seed and key that can be read
from the files. With one round the weights give the update; a right guess of the noise leaves the clean gradient.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jsam.cli import main
from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")
    require("sklearn", extra="train")
    require("dp_accounting", extra="train")

from jsam.errors import JsamError
from jsam.privacy import derived_seed, generator, keyed_bytes, read_ledger
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.noise_source import NoiseSource, SecretNoise, SeededNoise
from jsam.training.models import build_model
from jsam.training.recorded_run import resume, train
from jsam.training.round_inputs import combined_std, round_inputs
from jsam.training.trials import Trial, run_trials
from reproduction.config import RunConfig
from reproduction.running import settings_of
from tests.training.small import contents, run, small_contract, small_settings, small_task

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")

ONE_ROUND = [
    "--dataset", "digits", "--clients", "8", "--loss-weight", "50", "--max-epsilon", "1", "--rounds", "1",
    "--per-round", "4", "--learning-rate", "0.5", "--threads", "1", "--seed", "5",
]  # fmt: skip


def simulated(folder: Path, *options: str) -> Path:
    assert main(["simulate", *ONE_ROUND, *options, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("secret") / "run")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("known") / "run", "--noise-seed", "5")


def update(folder: Path) -> NDArray[np.float64]:
    """What the one round added to the weights, in units of the gradient."""
    first = build_model("digits", derived_seed(5, "model"))
    last = torch.load(folder / "model.pt", weights_only=True)
    before = torch.cat([value.detach().flatten() for value in first.parameters()])
    after = torch.cat([value.flatten() for value in last.values()])
    return ((before - after) / 0.5).double().numpy()


def guesses(*folders: Path) -> Iterator[NoiseSource]:
    """Every whole number and every 128 bits of hexadecimal digits in the files but the key's, as a seed and a key."""
    texts = [
        path.read_bytes().decode(errors="replace") for f in folders for path in f.iterdir() if path.suffix != ".key"
    ]
    numbers = {int(found) for text in texts for found in re.findall(r"(?<![\d.])\d{1,18}(?![\d.])", text)}
    words = {found for text in texts for found in re.findall(r"[0-9a-f]{32}", text)}
    for number in sorted(numbers | {int(word, 16) for word in words}):
        yield SeededNoise(number)
        yield SecretNoise(number.to_bytes(16, "little"))
        yield SecretNoise(number.to_bytes(16, "big"))
        yield SecretNoise(keyed_bytes(number.to_bytes(16, "big"), "check", size=16))


def correlation(source: NoiseSource, found: NDArray[np.float64]) -> float:
    return float(np.corrcoef(source.normals(found.size, 0).astype(np.float64), found)[0, 1])


def noise_of(folder: Path, source: NoiseSource, size: int) -> NDArray[np.float64]:
    releases = read_ledger(folder / "ledger.jsonl")
    return source.normals(size, 0).astype(np.float64) * combined_std(releases, [1.0] * len(releases), 4)


def clean_norm(folder: Path) -> float:
    line: dict[str, float] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])
    return line["gradient_norm"]


def test_nothing_in_the_run_or_its_published_copy_tells_the_noise(secret: Path, tmp_path: Path) -> None:
    assert main(["publish", str(secret), str(tmp_path / "copy"), "--with-ledger"]) == 0
    found = update(secret)
    tried = [correlation(source, found) for source in guesses(secret, tmp_path / "copy")]
    assert len(tried) > 100
    assert max(map(abs, tried)) < 6 / np.sqrt(found.size)


def test_the_same_attack_finds_a_known_seed_and_the_key_itself(secret: Path, known: Path) -> None:
    """So the test above can fail: with a noise seed, or the key file, the clean gradient is left."""
    assert max(correlation(source, update(known)) for source in guesses(known)) > 0.9
    key = SecretNoise(bytes.fromhex((secret / "noise.key").read_text()))
    for folder, source in ((known, SeededNoise(5)), (secret, key)):
        found = update(folder)
        left = float(np.linalg.norm(found - noise_of(folder, source, found.size)))
        assert left == pytest.approx(clean_norm(folder), rel=1e-3)
        assert np.linalg.norm(found) > 5 * left


def test_two_runs_of_one_seed_have_noise_of_their_own(secret: Path, tmp_path: Path) -> None:
    again = simulated(tmp_path / "again")
    assert (again / "schedule.jsonl").read_bytes() == (secret / "schedule.jsonl").read_bytes()
    assert clean_norm(again) == clean_norm(secret)
    assert abs(float(np.corrcoef(update(again), update(secret))[0, 1])) < 0.1


def test_the_key_is_in_its_own_file_alone_and_nothing_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulated(tmp_path / "run", "--tensorboard")
    assert main(["report", str(folder)]) == main(["report", str(folder), "--format", "json"]) == 0
    assert main(["resume", str(folder)]) == 0
    shown = "".join(capsys.readouterr())
    text = (folder / "noise.key").read_text().strip()
    key = bytes.fromhex(text)
    assert len(key) == 16
    assert text not in shown
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "noise.key":
            content = path.read_bytes()
            for form in (key, key[::-1], text.encode(), text.upper().encode(), str(int(text, 16)).encode()):
                assert form not in content, path
    assert text not in repr(SecretNoise(key))
    assert str(key) not in repr(SecretNoise(key))


def test_the_key_is_for_its_owner_alone_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        if Path(target).name == "noise.key":
            modes.append(stat.S_IMODE(os.stat(source).st_mode))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    before = os.umask(0)
    try:
        run(tmp_path / "run", noise_seed=None)
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "run" / "noise.key").stat().st_mode) == 0o600
    assert not list((tmp_path / "run").glob("*.part"))


class _Stopped(BaseException):
    """Nothing in the library may catch this."""


def stopped(folder: Path, at: int = 5) -> Path:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == at:
            raise _Stopped

    settings = small_settings(noise_seed=None, momentum=0.5)
    with pytest.raises(_Stopped):
        train(small_contract(), small_task(dropout=0.3), settings, folder, progress=stop)
    return folder


def begun_again(folder: Path, twin: Path) -> Path:
    """The same run with the same key, as it was before its first round."""
    twin.mkdir()
    for name in ("config.json", "contract.json", "schedule.jsonl", "noise.key"):
        shutil.copy(folder / name, twin / name)
    return twin


@pytest.mark.parametrize("at", [0, 1, 4, 6, 7])
def test_a_run_with_a_key_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, at: int) -> None:
    folder = stopped(tmp_path / "run", at)
    twin = begun_again(folder, tmp_path / "twin")
    for path in (folder, twin):
        resume(path, task=small_task(dropout=0.3))
    assert contents(folder) == contents(twin)


SPOILT: list[tuple[Callable[[Path], object], str]] = [
    (lambda key: key.unlink(), r"noise\.key is missing: without it the rounds"),
    (lambda key: key.write_text("0" * 32 + "\n"), "is not the key that this run was begun with"),
    (lambda key: key.write_text("rubbish"), r"noise\.key is damaged: it must hold 32 hexadecimal digits"),
    (lambda key: key.write_bytes(b""), r"noise\.key is damaged"),
    (lambda key: key.chmod(0o640), r"may be read by others \(mode 0640; it must be 0600\)"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT, ids=[message for _, message in SPOILT])
def test_without_its_own_secret_key_a_run_does_not_go_on(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    """A repeated round with other noise would be a second release."""
    folder = stopped(tmp_path / "run")
    spoil(folder / "noise.key")
    before = contents(folder)
    with pytest.raises(JsamError, match=message) as caught:
        resume(folder, task=small_task(dropout=0.3))
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_once_the_run_is_over_its_key_may_be_deleted(tmp_path: Path) -> None:
    run(tmp_path / "run", noise_seed=None)
    (tmp_path / "run" / "noise.key").unlink()
    before = contents(tmp_path / "run")
    resume(tmp_path / "run", task=small_task())
    assert contents(tmp_path / "run") == before


NOT_PRIVATE = "not private: the noise follows from the seed"


def test_known_noise_is_called_not_private_in_every_output(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated(tmp_path / "run", "--noise-seed", "5")
    said = capsys.readouterr()
    assert NOT_PRIVATE in said.err
    assert NOT_PRIVATE in said.out
    for command in (["report"], ["report", "--format", "csv"], ["report", "--format", "json"], ["resume"]):
        assert main([command[0], str(known), *command[1:]]) == 0
        said = capsys.readouterr()
        assert NOT_PRIVATE in said.err, command
        assert "csv" in command or NOT_PRIVATE in said.out, command
    for name in ("config.json", "summary.json", "audit.json", "report.html"):
        assert NOT_PRIVATE in (known / name).read_text(), name
    assert "differential-privacy guarantee" not in (known / "report.html").read_text()
    assert json.loads((known / "config.json").read_text())["settings"]["noise_seed"] == 5


def test_a_private_run_is_called_so_nowhere_else(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(secret)]) == 0
    assert NOT_PRIVATE not in "".join(capsys.readouterr())
    for name in ("config.json", "summary.json", "audit.json", "report.html"):
        assert NOT_PRIVATE not in (secret / name).read_text(), name


def as_before_there_were_keys(folder: Path) -> None:
    """As the version wrote it whose noise followed from the one seed."""
    config = json.loads((folder / "config.json").read_text())
    del config["settings"]["noise_seed"], config["noise_from"], config["noise_key_check"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("noise_from", "fingerprint"):
        if (folder / "summary.json").exists():
            summary = json.loads((folder / "summary.json").read_text())
            summary.pop(name)
            (folder / "summary.json").write_text(json.dumps(summary))
    from jsam.runs.run_folder import RunFolder

    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"fingerprint": RunFolder(folder).fingerprint(config)}, folder / "checkpoint.pt")


def test_an_older_run_is_reported_as_not_private_and_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulated(tmp_path / "run", "--noise-seed", "5")
    as_before_there_were_keys(folder)
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert NOT_PRIVATE in capsys.readouterr().out
    assert main(["publish", str(folder), str(tmp_path / "copy")]) == 2
    assert "is not private" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_an_older_unfinished_run_goes_on_with_the_noise_that_it_had(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", noise_seed=5)
    folder = tmp_path / "run"

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 5:
            raise _Stopped

    with pytest.raises(_Stopped):
        train(small_contract(), small_task(), small_settings(noise_seed=5), folder, progress=stop)
    as_before_there_were_keys(folder)
    assert resume(folder, task=small_task()).accuracy == whole.accuracy
    for name in ("model.pt", "ledger.jsonl", "metrics.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_trials_have_keys_of_their_own_unless_a_noise_seed_is_given() -> None:
    task = small_task()
    for noise_seed, alike in ((None, False), (5, True)):
        trials = [Trial(contract=small_contract(), task=task, settings=small_settings(noise_seed=noise_seed))] * 2
        found = dict(run_trials(trials))
        assert (found[0].loss == found[1].loss) is alike


def test_experiments_draw_the_noise_that_their_stored_results_were_made_with() -> None:
    """From the configuration's seed, by the same derivation as before there were keys: to be repeated to the bit."""
    stored = {
        "dataset": "digits", "similarity": 50.0, "mechanism": "usbm", "cost": 1.0, "noise_weight": 1.0,
        "noise": "exact", "clip_norm": 1.0, "learning_rate": 0.1, "seed": 7,
    }  # fmt: skip
    config = RunConfig.from_dict(stored)
    settings = settings_of(config, "cpu")
    assert settings.noise_seed == settings.seed == 7
    expected = generator(7, "noise", round=3).standard_normal(20, dtype=np.float32)
    assert np.array_equal(SeededNoise(7).normals(20, 3), expected)
    assert SeededNoise(7).device_seed(3) == derived_seed(7, "noise", round=3)


def test_what_a_cuda_device_is_given_follows_from_the_key_and_is_not_shown() -> None:
    """The seed of each round's noise on the device, as replayed graphs take it; no GPU is needed to look at it."""
    task = small_task()
    prepared = NoisePlan.of(small_contract(), small_settings(noise_seed=None), task.partition.sizes)
    source = SecretNoise(bytes(range(16)))
    for drawn in prepared.schedule:
        given = round_inputs(prepared, task.partition, drawn, prepared.releases(drawn), source)
        assert given.noise_seed == source.device_seed(drawn.index)
        assert given.noise_seed != derived_seed(prepared.settings.seed, "noise", round=drawn.index)
        assert str(given.noise_seed) not in repr(given)
        torch.Generator().manual_seed(given.noise_seed)  # torch takes all of it


def test_rounds_of_a_key_share_no_noise_and_no_device_seed() -> None:
    sources = [SecretNoise(bytes(15) + bytes([k])) for k in range(3)]
    rows = [source.normals(4000, index) for source in sources for index in range(3)]
    for one, other in itertools.combinations(rows, 2):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 6 / np.sqrt(4000)
    seeds = [source.device_seed(index) for source in sources for index in range(3)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) >= 2**63  # all 64 bits are used
