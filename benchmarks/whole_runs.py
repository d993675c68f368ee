"""Whole runs of 1000 rounds on one GPU: one, and several side by side."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jsam.training.clipping.precision import Precision


def end_to_end(dataset: str, precision: Precision, folder: Path, rounds: int = 1000) -> dict[str, Any]:
    """A whole run, and for MNIST ten runs side by side, in this process and as a command of their own."""
    from jsam.training import train

    contract, task, settings = whole_run(dataset, precision, rounds)
    found: dict[str, Any] = {}
    initial = {name: value.clone() for name, value in task.model.state_dict().items()}
    # The first run compiles kernels, once for a machine.
    for name, count in (("20 rounds, kernels compiled", 20), ("one run", rounds)):
        task.model.load_state_dict(initial)
        start = time.perf_counter()
        result = train(contract, task, replace(settings, rounds=count), folder / name.replace(", ", "-"))
        torch.cuda.synchronize()
        found[name] = time.perf_counter() - start
    found["accuracy"] = result.accuracy
    task.model.load_state_dict(initial)
    task.model.to("cpu")
    for count in (1, 10) if dataset == "mnist" else ():
        start = time.perf_counter()
        accuracies = side_by_side(contract, task, settings, count)
        found[f"{count} at once"] = time.perf_counter() - start
        found[f"{count} at once, accuracies"] = accuracies
    for count in (1, 10) if dataset == "mnist" and precision == "tf32" else ():
        start = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.gpu", "--side-by-side", dataset, precision, str(count)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found[f"{count} at once, the whole command"] = time.perf_counter() - start
    return found


def whole_run(dataset: str, precision: Precision, rounds: int = 1000) -> tuple[Any, Any, Any]:
    """Contract, task and settings of a run as the paper makes them."""
    import numpy as np
    import scipy.stats

    import jsam
    from jsam.training import TaskSpec, TrainingSettings

    reports = np.random.default_rng(0).uniform(0, 1, 100)
    market = jsam.Market(sensitivities=reports, prior=scipy.stats.uniform(0, 1))
    contract = jsam.plan(market, jsam.USBM(loss_weight=5000.0), payments=False)
    task = TaskSpec(dataset=dataset, num_clients=100, similarity=100.0).build()
    settings = TrainingSettings(
        noise_seed=0,  # accuracies that can be repeated
        rounds=rounds,
        clip_norm=6.0,
        learning_rate=0.05,
        noise="lemma1",
        c2=0.1,
        evaluate_every=20,
        checkpoint_every=100,
        device="cuda",
        precision=precision,
    )
    return contract, task, settings


def side_by_side(contract: Any, task: Any, settings: Any, count: int) -> list[float]:
    """The accuracies of runs that differ in their seed."""
    from jsam.training.trials import Trial, run_trials

    trials = [
        Trial(contract=contract, task=task, settings=replace(settings, seed=s, noise_seed=s)) for s in range(count)
    ]
    return [found.accuracy for _, found in run_trials(trials, at_once=count)]
