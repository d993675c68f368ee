"""The loop does what it says: the right update, the ledger first, the same run from the same seed."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import require

if TYPE_CHECKING:
    import torch
else:
    torch = require("torch", extra="train")

from jsam.errors import InputError, JsamError, RunFolderError, TrainingStoppedError, TrainingWarning
from jsam.privacy import Exact, Ledger, Schedule, generator, noise_multiplier, read_ledger, spent_epsilons
from jsam.runs.noise_plan import NoisePlan
from jsam.runs.settings import TrainingSettings
from jsam.training.clipping.clipped_sum import SAFETY_MARGIN
from jsam.training.recorded_run import train
from tests.oracles.clipping import ClientBatch, reference_clipped_sum
from tests.training.small import (
    SIZES,
    contents,
    run,
    seeded_model,
    small_contract,
    small_settings,
    small_task,
)

pytestmark = pytest.mark.filterwarnings("ignore::jsam.errors.TrainingWarning")


def _flat(model: Any) -> Any:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def test_every_update_is_the_mean_of_clipped_gradients_plus_the_recorded_noise(tmp_path: Path) -> None:
    """Replayed client by client from the definition: multiplicities, unequal sizes, importance weights, momentum."""
    update_weights = np.array([0.5, 1.0, 2.0, 1.5, 0.7, 1.2])
    contract = small_contract(update_weights=update_weights)
    settings, task, twin = small_settings(momentum=0.6), small_task(), seeded_model()
    train(contract, task, settings, tmp_path / "run")

    schedule = Schedule.draw(contract.selection_probs, rounds=8, per_round=4, seed=5)
    assert max(drawn.multiplicities.max() for drawn in schedule) > 1  # or the test would not see multiplicities
    sigma = noise_multiplier(contract.epsilons, 1e-5, schedule.participations)
    velocity = torch.zeros(_flat(twin).numel())
    inputs, targets = torch.from_numpy(task.dataset.train_inputs), torch.from_numpy(task.dataset.train_targets)
    for drawn in schedule:
        total, variance = torch.zeros(_flat(twin).numel()), 0.0
        for k, m in zip(drawn.clients, drawn.multiplicities, strict=True):
            rows = torch.from_numpy(task.partition.indices[k])
            batch = ClientBatch(inputs=inputs[rows], targets=targets[rows], multiplicity=int(m))
            share = reference_clipped_sum(twin, [batch], clip_norm=0.7 * (1 - SAFETY_MARGIN), per_round=4)
            total += float(update_weights[k]) * share
            variance += m * (update_weights[k] * sigma[k] * 0.7 / SIZES[k] / 4) ** 2
        draws = generator(5, "noise", round=drawn.index).standard_normal(total.numel(), dtype=np.float32)
        total += torch.from_numpy(draws * np.float32(np.sqrt(variance)))
        velocity = 0.6 * velocity + total
        torch.nn.utils.vector_to_parameters(_flat(twin) - 0.3 * velocity, twin.parameters())
    torch.testing.assert_close(_flat(task.model), _flat(twin), rtol=1e-4, atol=1e-5)


def test_a_client_drawn_several_times_is_one_release_with_its_multiplicity(tmp_path: Path) -> None:
    run(tmp_path / "run")
    schedule = Schedule.load(tmp_path / "run" / "schedule.jsonl")
    recorded = {(r.round, r.client): r.multiplicity for r in read_ledger(tmp_path / "run" / "ledger.jsonl")}
    expected = {
        (drawn.index, str(k)): int(m)
        for drawn in schedule
        for k, m in zip(drawn.clients, drawn.multiplicities, strict=True)
    }
    assert recorded == expected
    assert max(recorded.values()) > 1


def test_no_release_carries_less_noise_than_its_contract_needs(tmp_path: Path) -> None:
    contract = small_contract()
    for adjacency in ("add-remove", "replace"):
        run(tmp_path / adjacency, contract=contract, adjacency=adjacency)
        releases = read_ledger(tmp_path / adjacency / "ledger.jsonl")
        spent = spent_epsilons(releases, 1e-5)
        assert all(spent[name] <= sold for name, sold in zip(contract.ids, contract.epsilons, strict=True))
        assert any(spent[name] > 0.999 * sold for name, sold in zip(contract.ids, contract.epsilons, strict=True))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run(tmp_path / name, seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    for file in ("model.pt", "metrics.jsonl", "ledger.jsonl", "schedule.jsonl"):
        assert contents(tmp_path / "a")[file] != contents(tmp_path / "c")[file]


def test_the_ledger_is_written_before_the_update_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, seen = small_task(), []

    def watching(ledger: Ledger, releases: Any) -> int:
        seen.append(_flat(task.model))
        if len(seen) == 3:
            raise JsamError("the disk is full")
        return append(ledger, releases)

    append = Ledger.append
    monkeypatch.setattr(Ledger, "append", watching)
    with pytest.raises(JsamError, match="disk is full"):
        train(small_contract(), task, small_settings(), tmp_path / "run")
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(_flat(task.model), seen[2])  # the round that could not be recorded changed nothing
    assert {release.round for release in read_ledger(tmp_path / "run" / "ledger.jsonl")} == {0, 1}


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step", "inverse-sqrt"])
def test_learning_rates_follow_their_schedule(schedule: str) -> None:
    settings = small_settings(rounds=100, learning_rate=2.0, learning_rate_schedule=schedule)
    known = {
        "constant": (2.0, 2.0, 2.0),
        "cosine": (2.0, 1.0, 2.0 * 0.5 * (1 + np.cos(0.99 * np.pi))),
        "step": (2.0, 0.2, 0.02),
        "inverse-sqrt": (2.0, 2.0 / np.sqrt(51), 0.2),
    }
    assert [settings.learning_rate_at(t) for t in (0, 50, 99)] == pytest.approx(known[schedule])


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    result = run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(9))
    assert [line["round"] for line in lines if "accuracy" in line] == [0, 3, 6, 8]
    last = lines[-1]
    assert result.accuracy == last["accuracy"]
    assert len(last["class_accuracy"]) == 3
    assert last["noise_to_signal"] == pytest.approx(last["noise_norm"] / last["gradient_norm"])
    assert last["gradient_norm"] <= 0.7 * (1 + 1e-6)
    assert 0 <= last["share_clipped"] <= 1


def test_training_learns_when_much_privacy_is_sold(tmp_path: Path) -> None:
    contract = small_contract(epsilons=np.full(6, 500.0))
    result = run(tmp_path / "run", contract=contract, rounds=40, learning_rate=1.0, delta=1e-6)
    assert result.accuracy > 0.8


def test_a_loss_that_is_no_number_stops_the_run_names_the_round_and_keeps_the_rest(tmp_path: Path) -> None:
    class Breaking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = seeded_model()

        def forward(self, x: Any) -> Any:
            return self.inner(x) * (float("nan") if self.training and self.poisoned else 1.0)

        poisoned = False

    model = Breaking()
    task = small_task(model=model)

    def poison(record: dict[str, Any]) -> None:
        model.poisoned = record["round"] == 4

    with pytest.raises(TrainingStoppedError, match="round 5 of 8: the loss is nan"):
        train(small_contract(), task, small_settings(), tmp_path / "run", progress=poison)
    assert {release.round for release in read_ledger(tmp_path / "run" / "ledger.jsonl")} == {0, 1, 2, 3}
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_full_disk_is_one_line_and_loses_nothing_promised(tmp_path: Path) -> None:
    """A limit on file sizes stands in for the full disk: writes fail with the operating system's own error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(JsamError, match=r"ledger\.jsonl.*File too large") as caught:
            run(tmp_path / "run", rounds=60, checkpoint_every=100, evaluate_every=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    rounds = {release.round for release in read_ledger(tmp_path / "run" / "ledger.jsonl")}
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) - 1 == len(rounds) == max(rounds) + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm is 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1"),
        ({"per_round": 0}, "per_round is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"delta": 0.0}, "delta is 0"),
        ({"delta": 1.5}, "delta is 1.5"),
        ({"momentum": 1.0}, "momentum is 1"),
        ({"noise": "laplace"}, "exact, lemma1"),
        ({"noise": "lemma1"}, "without c2"),
        ({"adjacency": "swap"}, "add-remove, replace"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate_schedule": "wave"}, "constant, cosine"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_settings_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_settings(**changes)


@pytest.mark.parametrize(("device", "message"), [("abacus", "cpu, cuda"), ("mps", "cpu, cuda"), ("cuda:7", "use cpu")])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, device: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_or_strange_files_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(RunFolderError, match="holds a run already"):
        run(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ledger.jsonl").write_text("mine")
    with pytest.raises(RunFolderError, match="but no config"):
        run(tmp_path / "other")
    assert (tmp_path / "other" / "ledger.jsonl").read_text() == "mine"


@pytest.mark.filterwarnings("default")
def test_hopeless_budgets_and_a_delta_as_large_as_one_record_are_warned_about(tmp_path: Path) -> None:
    with pytest.warns(TrainingWarning, match="delta is 0.05, not below 1/30"):
        run(tmp_path / "a", delta=0.05)
    with pytest.warns(TrainingWarning, match="budget is too small to train on"):
        run(tmp_path / "b", contract=small_contract(epsilons=np.full(6, 0.01)))


def test_the_contract_and_the_partition_must_have_the_same_clients(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contract has 5 clients and the partition 6"):
        run(tmp_path / "run", contract=small_contract(5), task=small_task())


def test_a_plan_of_other_noise_than_asked_for_is_refused(tmp_path: Path) -> None:
    """Or the stored contract and settings would not be those that the noise was made for."""
    contract, task, settings = small_contract(), small_task(), small_settings()
    plan = NoisePlan.of(contract, settings, task.partition.sizes)
    for asked, given in ((small_contract(epsilon_cap=2.0), settings), (contract, small_settings(delta=1e-7))):
        with pytest.raises(InputError, match="plan is of another contract"):
            train(asked, task, given, tmp_path / "run", plan=plan)
    other = small_task(sizes=(10,) * 6)
    with pytest.raises(InputError, match="plan is of another contract"):
        train(contract, other, settings, tmp_path / "run", plan=plan)
    assert not (tmp_path / "run").exists()
    train(contract, task, settings, tmp_path / "run", plan=plan)
    run(tmp_path / "plain")
    assert contents(tmp_path / "run") == contents(tmp_path / "plain")


def test_lemma1_noise_is_its_formula(tmp_path: Path) -> None:
    contract, settings = small_contract(), TrainingSettings(rounds=20, per_round=3, noise="lemma1", c2=0.3, seed=2)
    found = NoisePlan.of(contract, settings, SIZES)
    expected = 0.3 * np.sqrt(np.log(1e5) * found.schedule.participations) / contract.epsilons
    assert found.noise_multipliers == pytest.approx(expected)
    assert Exact().label == "exact"
