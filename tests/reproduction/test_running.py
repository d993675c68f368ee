"""Sweeps: what is there is not made again, a kill loses nothing, results of several machines merge."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsam.errors import InputError
from jsam.runs.noise_plan import NoisePlan
from jsam.sweeps.device_time import FILE, add_sweep, read_sweeps
from jsam.training.trials import Trial, run_trials
from reproduction import running
from reproduction.__main__ import main
from reproduction.config import RunConfig
from reproduction.paths import Places
from reproduction.planning import Plans
from reproduction.results import Results
from reproduction.reuse import Twins
from reproduction.running import missing, run_specs, settings_of, spent_epsilon_max
from reproduction.spec import Spec, load_specs
from reproduction.store import append, merge, read_folder, read_records
from reproduction.tabulate import COLUMNS, table_rows
from reproduction.tasks import task_of
from reproduction.tuned_settings import Chosen


def runs_of(places: Places) -> list[RunConfig]:
    (spec,) = load_specs(places)
    return spec.runs(Chosen.load(places.chosen))


def make(places: Places, **options: Any) -> running.Outcome:
    return run_specs(load_specs(places), places, tell=lambda line: None, **options)


def test_a_whole_sweep_at_one_seed_comes_before_the_next(places: Places) -> None:
    runs = runs_of(places)
    assert [config.seed for config in runs] == [0] * 4 + [1] * 4
    assert [config.similarity for config in runs[:4]] == [100, 100, 0, 0]
    assert runs[0].c2 == 0.1
    assert runs[0].noise_weight == 9


def test_a_key_is_that_of_the_configuration_and_of_nothing_else(places: Places) -> None:
    first = runs_of(places)[0]
    assert RunConfig.from_dict(json.loads(json.dumps(first.as_dict()))).key == first.key
    assert first.changed(cost=5).key == first.changed(cost=5.0).key
    changed = [first.changed(seed=7), first.changed(c2=0.2), first.changed(rounds=5)]
    assert len({first.key, *(config.key for config in changed)}) == 4


def test_an_interrupted_sweep_goes_on_where_it_was(places: Places) -> None:
    stopped = make(places, limit_seconds=0.0001, only=["*seed0"])
    assert stopped.made + stopped.left == 4
    rest = make(places)
    assert stopped.made + rest.made == 8
    assert make(places).made == 0
    keys = {config.key for config in runs_of(places)}
    assert read_folder(places.results).keys() == keys


def test_a_run_whose_contract_was_run_before_is_not_made_again(places: Places) -> None:
    """BBM's draws do not hang on Q and its cost sets ε; JSAM's draws do."""
    make(places)
    before = {record.config: record for record in read_folder(places.results).values()}
    places.chosen.write_text(places.chosen.read_text().replace("noise_weight = 9.0", "noise_weight = 2.0"))
    told: list[str] = []
    outcome = run_specs(load_specs(places), places, tell=told.append)
    assert (outcome.made, outcome.taken, outcome.left) == (4, 4, 0)
    assert str(outcome).endswith(" s, 4 taken over from runs with the same contract, 0 left")
    assert any("4 runs are those of stored ones" in line for line in told)
    for config in runs_of(places):
        record = read_folder(places.results)[config.key]
        old = before[config.changed(noise_weight=9.0)]
        if config.mechanism == "jsam":
            assert "same_as" not in record.result
            continue
        assert record.result["same_as"] == old.key
        assert record.result["accuracy"] == old.result["accuracy"]
        assert record.result["monetary_cost"] == pytest.approx(old.result["monetary_cost"], rel=1e-5)
        # The contract's own numbers: the bound weighs the same noise with another Q.
        assert record.result["loss_bound"] != old.result["loss_bound"]
        contract = Plans.load(places.plans).contract(config)
        assert record.result["loss_bound"] == pytest.approx(contract.loss_bound, rel=1e-5)
    assert make(places).made == 0


def test_the_search_for_runs_made_before_ends_when_time_is_up(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is kept, its time counts for no device, and the next call goes on."""
    make(places, only=["*/bbm-5/*"])
    sweeps = read_sweeps(places.output)
    places.chosen.write_text(places.chosen.read_text().replace("noise_weight = 9.0", "noise_weight = 2.0"))
    now = [0.0]
    monkeypatch.setattr("reproduction.running.time.perf_counter", lambda: now[0])

    class Slow(Twins):
        def of(self, config: RunConfig) -> Any:
            now[0] += 1.0
            return super().of(config)

    monkeypatch.setattr(running, "Twins", Slow)
    outcome = make(places, only=["*/bbm-5/*"], limit_seconds=3)
    assert (outcome.made, outcome.taken, outcome.left, outcome.seconds) == (0, 3, 1, 3.0)
    assert len(read_folder(places.results)) == 4 + 3
    outcome = make(places, only=["*/bbm-5/*"])
    assert str(outcome) == "0 runs made in 1 s, 1 taken over from runs with the same contract, 0 left"
    assert read_sweeps(places.output) == sweeps


def test_a_long_run_says_how_far_it_is(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(running, "QUIET_SECONDS", 0.0)
    run_specs(load_specs(places), places, only=["*bbm-5*seed0"], tell=told.append)
    inside = [line for line in told if "rounds" in line]
    assert [line.partition(";")[0] for line in inside] == [
        f"small: {done} of 8 rounds, {done / 8:.0%}" for done in range(1, 9)
    ]
    assert inside[-1].endswith("0 s left")


def test_runs_are_chosen_by_name(places: Places) -> None:
    assert len(missing(runs_of(places), places, ["*/bbm-5/*"])) == 4
    assert len(missing(runs_of(places), places, ["*/s0/*", "*seed1*"])) == 6


def test_a_pattern_that_fits_nothing_is_refused_with_an_example(places: Places) -> None:
    with pytest.raises(InputError, match=r"no run is named 'mnist/nobody' or '\*/x'; one is \S+/cost\S+/seed0"):
        make(places, only=["mnist/nobody", "*/x"])


def test_results_of_two_machines_merge_to_the_same_file_in_either_order(places: Places, tmp_path: Path) -> None:
    parts = []
    for name, only in (("one", "*seed0"), ("two", "*seed1")):
        part = dataclasses.replace(places, output=tmp_path / name)
        make(part, only=[only])
        parts.append(part.output)
    files = []
    for name, order in (("a", parts), ("b", parts[::-1])):
        target = tmp_path / name
        assert [merge(part, target) for part in order] == [(4, 0), (4, 0)]
        assert merge(order[0], target) == (0, 4)
        files.append((target / "small.jsonl").read_bytes())
    assert files[0] == files[1]


def test_a_line_cut_short_by_a_kill_is_dropped_and_made_again(places: Places) -> None:
    make(places, only=["*seed0"])
    path = places.results / "small.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    records = list(read_records(path))
    assert len(records) == 3
    append(path, records[0])
    assert len(list(read_records(path))) == 4
    assert make(places, only=["*seed0"]).made == 1
    path.write_text('{"key": "x"}\n' + path.read_text())
    with pytest.raises(InputError, match="line 1"):
        list(read_records(path))


def test_rows_have_the_promised_columns_and_missing_runs_show_as_missing(places: Places) -> None:
    make(places, only=["*/jsam/*"])
    rows = table_rows(load_specs(places), places)["small"]
    assert all(tuple(row) == COLUMNS for row in rows)
    by_name = {(row["mechanism"], row["similarity"]): row for row in rows}
    made, lacking = by_name["jsam", 100.0], by_name["bbm-5", 100.0]
    assert made["seeds"] == 2
    assert 0 <= made["accuracy_mean"] <= 100
    assert made["epsilon_exact_max"] > 0
    assert lacking["seeds"] == 0
    assert lacking["accuracy_mean"] is None


def test_eta_and_what_is_sold_come_from_the_runs_and_only_eta_from_plans(places: Places) -> None:
    make(places, only=["*/jsam/*"])
    records = [r for r in read_folder(places.results).values() if r.config.similarity == 100]
    shutil.rmtree(places.plans, ignore_errors=True)
    weight = Plans.load(places.plans).loss_weight(runs_of(places)[1])
    rows = table_rows(load_specs(places), places)["small"]
    by_name = {row["mechanism"]: row for row in rows if row["similarity"] == 100}
    assert {r.result["loss_weight"] for r in records} == {by_name["jsam"]["loss_weight"]}
    sold = [r.result["epsilon_sold_max"] for r in records]
    assert by_name["jsam"]["epsilon_sold_max"] == max(sold) > min(sold)
    assert by_name["bbm-5"]["loss_weight"] == pytest.approx(weight)
    assert by_name["bbm-5"]["epsilon_sold_max"] is None


def test_the_exact_epsilon_beside_lemma1_is_the_accountants(places: Places) -> None:
    """Under the exact rule nobody spends more than was sold; under Lemma 1 with a small c₂ somebody does."""
    config = runs_of(places)[0]
    plans = Plans.load(places.plans)
    spent = {}
    for noise, c2 in (("exact", None), ("lemma1", 0.1)):
        changed = config.changed(noise=noise, c2=c2)
        contract = plans.contract(changed)
        drawn = NoisePlan.of(contract, settings_of(changed, "cpu"), task_of(changed).partition.sizes)
        spent[noise] = spent_epsilon_max(drawn)
        taking_part = drawn.schedule.participations > 0
        sold = float(contract.epsilons[taking_part].max())
        if noise == "exact":
            assert spent[noise] == pytest.approx(sold, rel=1e-4)
            assert spent[noise] <= sold
    assert spent["lemma1"] > 2 * spent["exact"]


def test_mechanisms_of_a_seed_face_the_same_clients(places: Places) -> None:
    plans = Plans.load(places.plans)
    jsam, bbm = runs_of(places)[:2]
    assert np.array_equal(plans.contract(jsam).sensitivities, plans.contract(bbm).sensitivities)
    assert task_of(jsam) is task_of(bbm)
    assert plans.contract(bbm).num_selected == 5


def test_a_straggler_stays_under_usbm_and_is_dropped_by_jsam(places: Places) -> None:
    plans = Plans.load(places.plans)
    config = runs_of(places)[0].changed(straggler_epsilon=1e-4)
    last = int(np.argmax(plans.contract(config).sensitivities))
    usbm = plans.contract(config.changed(mechanism="usbm", cost_of="usbm"))
    assert usbm.epsilons[last] == 1e-4
    assert usbm.selection_probs[last] == pytest.approx(0.1)
    jsam = plans.contract(config)
    assert jsam.selection_probs[last] == 0
    assert jsam.selection_probs.sum() == pytest.approx(1)


def test_a_run_that_diverges_is_a_result(places: Places) -> None:
    config = runs_of(places)[0].changed(learning_rate=1e38, rounds=6)
    task = task_of(config)
    trial = Trial(contract=Plans.load(places.plans).contract(config), task=task, settings=settings_of(config, "cpu"))
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    ((index, result),) = list(run_trials([trial]))
    assert index == 0
    assert result.diverged
    assert result.accuracy == 0.1
    assert all(bool((before[name] == value).all()) for name, value in task.model.state_dict().items())
    stored = running.stored_result(trial, result)
    assert json.loads(json.dumps(stored, allow_nan=False))["diverged"] is True


def test_the_program_plans_runs_lists_and_tabulates(
    places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path)]
    assert main(["plan", "small", *where]) == 0
    assert (places.plans / "loss-weights.json").exists()
    assert main(["run", "small", "--only", "*seed0", *where]) == 0
    assert main(["list", *where]) == 0
    assert "4 of 8" in capsys.readouterr().out
    assert main(["table", "small", "--format", "json", *where]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seeds"] for row in rows] == [1] * 4
    assert main(["run", "no-such", *where]) == 2
    assert "there are: small" in capsys.readouterr().err


def test_stored_plans_are_used_and_not_found_again(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(places)
    Plans.load(places.plans).prepare(runs, tell=lambda line: None)
    monkeypatch.setattr("jsam.mechanism.rules.loss_weight_for_budget", lambda *_, **__: math.nan)
    monkeypatch.setattr("reproduction.planning._local_losses", lambda *_: [])
    plans = Plans.load(places.plans)
    contracts = [plans.contract(config) for config in runs]
    assert all(contract.expected_cost > 0 for contract in contracts)


def stored_plans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / "plans" / name).read_text()) for name in ("loss-weights.json", "local-losses.json")]


def test_what_a_run_finds_of_plans_is_kept_with_its_results(places: Places, tmp_path: Path) -> None:
    """Those of the checkout count first and are not written elsewhere; merging brings in the others."""
    runs = runs_of(places)
    plans = Plans.load(places.plans)
    assert plans.known_loss_weight(runs[0]) is None
    known = plans.loss_weight(runs[0])
    away = dataclasses.replace(places, output=tmp_path / "away")
    make(away, only=["*seed0"])
    (weights,), losses = ([*found] for found in stored_plans(away.output))
    assert weights.startswith("bbm-5/")
    assert [name.split("/")[1] for name in losses] == ["s0", "s100"]
    assert not (places.plans / "local-losses.json").exists()
    merge(away.output, places.results)
    assert [len(found) for found in stored_plans(places.results)] == [2, 2]
    make(places)
    assert [len(found) for found in stored_plans(places.results)] == [2, 4]
    assert Plans.load(places.plans).known_loss_weight(runs[0]) == known


def test_plans_that_are_known_are_found_once_and_stay(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either folder; what was saved there meanwhile is not lost."""
    away = dataclasses.replace(places, output=tmp_path / "away")
    make(away, only=["*/bbm-5/*seed0"])
    jsam, bbm = runs_of(places)[:2]
    there = Plans.load(places.new_plans, places.plans)
    Plans.load(places.plans).loss_weight(bbm)
    there.loss_weight(jsam)
    assert len(json.loads((places.plans / "loss-weights.json").read_text())) == 2
    monkeypatch.setattr("jsam.mechanism.rules.loss_weight_for_budget", lambda *_, **__: pytest.fail("again"))
    monkeypatch.setattr("reproduction.planning._local_losses", lambda *_: pytest.fail("again"))
    make(away, only=["*seed0"])
    before = stored_plans(away.output)
    (away.new_plans / "loss-weights.json").write_text(json.dumps(dict.fromkeys(before[0], 7.0)))
    assert Plans.load(away.new_plans, places.plans).loss_weight(bbm) == before[0].popitem()[1]
    merge(away.output, places.results)
    assert 7.0 not in stored_plans(places.results)[0].values()


def test_a_specification_with_an_unknown_setting_is_refused() -> None:
    spec = Spec(id="x", order=1, title="", kind="training", shows="", grids=[{"colour": "red"}])
    with pytest.raises(InputError, match="colour"):
        spec.runs(Chosen(values={}))


def test_the_program_imports_numpy_scipy_and_torch_alone() -> None:
    """A machine with an accelerator may have nothing else."""
    program = """
import sys
import reproduction.__main__, reproduction.running, reproduction.tabulate, reproduction.choosing
known = {"typer", "rich", "click", "pydantic", "sklearn", "dp_accounting", "opacus", "matplotlib", "plotly", "PIL"}
print(sorted(known & {name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_sweep_leaves_its_time_and_merging_adds_up_those_of_a_card(places: Places, tmp_path: Path) -> None:
    first = make(places, only=["*seed0"])
    (sweep,) = read_sweeps(places.output)
    assert (sweep.runs, sweep.device) == (first.made, "CPU fp32")
    assert 0 < sweep.seconds <= first.seconds + 0.1
    other = tmp_path / "other"
    for count, taken in ((2, 7.0), (3, 4.0)):
        add_sweep(other, sweep.experiment, runs=count, seconds=taken, device="some card, tf32")
    merge(other, places.output)
    merge(other, places.output)
    assert len(read_sweeps(places.output)) == 3
    seconds, runs = Results(places).device_time(sweep.experiment)
    assert (round(seconds, 6), runs) == (11.0, 5)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_precision_that_the_cpu_lacks_is_refused_even_when_nothing_is_left(
    precision: str, places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["small", "--precision", precision, "--only", "no-such-run", "--root", str(places.home)]
    assert main(["run", *options]) == 2
    err = capsys.readouterr().err
    assert f"--precision is {precision!r}; the CPU computes in fp32 only" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("limit", ["0", "-5", "nan"])
def test_a_time_limit_must_be_above_zero(limit: str, places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--all", "--limit-seconds", limit, "--root", str(places.home)]) == 2
    err = capsys.readouterr().err
    assert f"--limit-seconds is {limit}; it must be above 0" in err
    assert err.count("\n") == 1
    assert not list(places.output.glob("*.jsonl"))


@pytest.mark.parametrize(("option", "value"), [("--device", "tpu"), ("--device", "cuda:99"), ("--precision", "fp8")])
def test_a_device_that_is_not_there_is_refused_before_anything_is_computed(
    option: str, value: str, places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr("jsam.mechanism.rules.loss_weight_for_budget", never)
    monkeypatch.setattr("reproduction.planning._local_losses", never)
    assert main(["run", "--all", option, value, "--root", str(places.home)]) == 2
    err = capsys.readouterr().err
    assert f"{option} is {value!r}" in err
    assert err.count("\n") == 1
    (places.output / FILE).write_text("garbage\n")
    with pytest.raises(InputError, match=r"sweeps\.csv is not a list of sweeps"):
        read_sweeps(places.output)


def test_a_specification_may_leave_the_step_and_the_heterogeneity_to_what_is_public() -> None:
    """Keys of earlier runs do not change by the settings that came with this."""
    given = {"dataset": "mnist", "similarity": 30, "mechanism": "jsam-even", "cost": 3, "noise_weight": 8.32}
    given |= {"noise": "exact", "clip_norm": 0.3, "seed": 0}
    config = RunConfig.from_dict({**given, "learning_rate": "fitted", "heterogeneity": "public"})
    assert (config.learning_rate, config.heterogeneity) == (0.0, "similarity:30/600")
    assert RunConfig.from_dict(config.as_dict()) == config
    plain = RunConfig.from_dict({**given, "learning_rate": 0.5})
    assert "heterogeneity" not in {name for name, value in plain.as_dict().items() if value is not None}


def test_a_mechanism_that_divides_the_cost_itself_has_no_loss_weight_to_find(places: Places) -> None:
    config = runs_of(places)[0].changed(mechanism="fairquery", cost=10.0, cost_of="", max_epsilon=10.0)
    plans = Plans.load(places.new_plans, places.plans)
    assert plans.loss_weight(config) == plans.known_loss_weight(config) == 1.0
    contract = plans.contract(config)
    assert contract.payments is not None
    assert 0 < contract.payments.sum() <= 10.0 * (1 + 1e-9)
