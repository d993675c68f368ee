"""Rounds by Flower's simulation engine with Opacus clients, in a process of their own, one round for each line asked.

    python -m benchmarks.flower_peer MODEL CLIENTS SAMPLES THREADS FOLDER

Every client is taken in every round, on one core, and makes one step over all of its samples with Opacus' optimizer;
the server averages the models. Data stay in the memory of Flower's workers, so that only training and Flower's own work
are timed. Flower looks for replies every 0.1 s, as it does for everybody.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

NEEDS = "flwr with its simulation extra: pip install '.[flower]'"
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_PATIENCE = 120.0
_NOISE_MULTIPLIER, _CLIP_NORM, _STEP = 1.0, 1.0, 0.1


def installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray", "opacus"))


class FlowerError(Exception):
    """The peer could not be timed."""


class FlowerPeer:
    """A running simulation; calling it makes one round and waits for its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise FlowerError("the simulation ended before its round did")
        return dict(json.loads(line))


@contextlib.contextmanager
def flower_simulation(model: str, clients: int, samples: int, threads: int) -> Iterator[FlowerPeer]:
    """Start it, and leave neither processes nor files behind."""
    # Sockets below this folder must keep within a hundred characters.
    with tempfile.TemporaryDirectory(prefix="jsam-fl-") as home, tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "benchmarks.flower_peer", model, str(clients), str(samples), str(threads)]
        process = subprocess.Popen(
            [*command, home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | OFFLINE | {"FLWR_HOME": home},
            start_new_session=True,
        )
        try:
            yield FlowerPeer(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_PATIENCE)
        except (FlowerError, OSError, subprocess.TimeoutExpired) as error:
            log.seek(0)
            raise FlowerError(f"{error}; its last words: {log.read()[-300:].strip()}") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@functools.cache
def _held(shape: tuple[int, ...], samples: int, client: int) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(client)
    return torch.randn(samples, *shape, generator=generator), torch.randint(0, 10, (samples,), generator=generator)


def _client_app(model_name: str, samples: int) -> Any:
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        import torch

        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule  # type: ignore[import-untyped]
        from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]

        from benchmarks.flower_peer import _held
        from benchmarks.rounds import SHAPES
        from jsam.training.models import build_model

        torch.set_num_threads(1)
        model = build_model(model_name, 0)
        model.load_state_dict(message.content["model"].to_torch_state_dict())
        private = GradSampleModule(model)
        optimizer = DPOptimizer(
            torch.optim.SGD(private.parameters(), lr=_STEP),
            noise_multiplier=_NOISE_MULTIPLIER,
            max_grad_norm=_CLIP_NORM,
            expected_batch_size=samples,
        )
        inputs, targets = _held(SHAPES[model_name], samples, int(context.node_config["partition-id"]))
        torch.autograd.backward(torch.nn.functional.cross_entropy(private(inputs), targets))
        optimizer.step()
        trained = ArrayRecord(private._module.state_dict())
        return Message(content=RecordDict({"model": trained}), reply_to=message)

    return app


def _server_app(model_name: str, clients: int) -> Any:
    import torch
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.serverapp import ServerApp

    from jsam.training.models import build_model

    app = ServerApp()

    @app.main()
    def main(grid: Any, _context: Any) -> None:
        state = build_model(model_name, 0).state_dict()
        answers = sys.__stdout__
        assert answers is not None
        for _ in sys.stdin:
            nodes = list(grid.get_node_ids())
            started = time.monotonic()
            while len(nodes) < clients and time.monotonic() < started + _PATIENCE:
                time.sleep(0.05)  # they register while the server app already runs
                nodes = list(grid.get_node_ids())
            content = ArrayRecord(state)
            messages = [Message(RecordDict({"model": content}), node, "train") for node in nodes]
            found = grid.send_and_receive(messages, timeout=_PATIENCE)
            replies = [reply.content["model"].to_torch_state_dict() for reply in found if reply.has_content()]
            if len(replies) != clients:
                raise RuntimeError(f"{len(replies)} of {clients} clients answered")
            state = {name: torch.stack([reply[name] for reply in replies]).mean(dim=0) for name in state}
            answers.write(json.dumps({"clients": len(replies)}) + "\n")
            answers.flush()

    return app


def _serve(model: str, clients: int, samples: int, threads: int, home: str) -> None:
    from flwr.simulation import run_simulation

    init = {"num_cpus": threads, "_temp_dir": home, "object_store_memory": 200 << 20, "log_to_driver": False}
    run_simulation(
        server_app=_server_app(model, clients),
        client_app=_client_app(model, samples),
        num_supernodes=clients,
        backend_config={"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},  # type: ignore[dict-item]
    )


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
