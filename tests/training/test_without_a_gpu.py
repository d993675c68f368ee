"""What can be proven of training on CUDA without a GPU: a round's arithmetic, its bookkeeping, what is merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from jsam.errors import InputError
from tests.conftest import require

torch = require("torch", extra="train")

from torch import Tensor, nn  # noqa: E402

from jsam.errors import RunFolderError  # noqa: E402
from jsam.privacy import Release  # noqa: E402
from jsam.runs.noise_plan import NoisePlan  # noqa: E402
from jsam.runs.noise_source import SeededNoise  # noqa: E402
from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights  # noqa: E402
from jsam.training.clipping.capture import Capture, Record  # noqa: E402
from jsam.training.clipping.gpu.forward import _Merged, merged  # noqa: E402
from jsam.training.clipping.precision import _switches  # noqa: E402
from jsam.training.eager_rounds import EagerRounds  # noqa: E402
from jsam.training.environment import accelerator, check_same  # noqa: E402
from jsam.training.evaluation import Evaluator, evaluate  # noqa: E402
from jsam.training.graphs import GraphRounds, ReplayedRounds, batch_sizes  # noqa: E402
from jsam.training.loaded_task import LoadedTask  # noqa: E402
from jsam.training.round_inputs import RoundInputs  # noqa: E402
from jsam.training.round_loop import MEASURES, Block, RoundMaker, blocks_between, due, made_rounds  # noqa: E402
from jsam.training.trials import Trial, run_trials  # noqa: E402
from tests.training.small import seeded_model, small_contract, small_settings, small_task  # noqa: E402


class RoundsInPlace(GraphRounds):
    """The tables and the round itself on the CPU: no stream, nothing recorded."""

    def __init__(self, model: nn.Module, *, sizes: tuple[int, ...], block: int = 1, momentum: float = 0.0) -> None:
        task = small_task()
        self.model, self.momentum = model, momentum
        self.engine = ClippingEngine(model, clip_norm=0.7, workers=1)
        self._inputs = torch.from_numpy(task.dataset.train_inputs)
        self._targets = torch.from_numpy(task.dataset.train_targets)
        self._sizes, self._block, self._device = sizes, block, torch.device("cpu")
        self._rows = torch.zeros((block, max(sizes)), dtype=torch.int64)
        self._weights = torch.zeros((block, max(sizes)))
        self._scales = torch.zeros((block, 2))
        self._measures = torch.zeros((block, len(MEASURES)))
        self._noise = torch.zeros(self.engine.parameter_count)
        self._velocity = torch.zeros_like(self._noise) if momentum else None
        self._next = torch.zeros(1, dtype=torch.int64)
        self._sound = torch.ones((), dtype=torch.bool)
        self._graphs = {}
        self.stream: Any = None  # what is queued on it runs at once

    def launch(self, rounds: Sequence[RoundInputs], *, evaluate: bool, snapshot: bool) -> Callable[[], Block]:
        self.fill(*rounds)
        for single in rounds:
            self._noise.normal_(generator=torch.Generator().manual_seed(single.noise_seed))
            self._round(self._size(len(single.rows)))
        measures = self._measures[: len(rounds)].tolist()
        made = Block(measures=measures, snapshot=self._snapshot() if snapshot else None)
        return lambda: made

    def wait(self) -> None:
        """Nothing is under way."""

    def fill(self, *rounds: RoundInputs) -> None:
        self._upload(self._stage(rounds), len(rounds))


@pytest.fixture(autouse=True)
def _no_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning memory needs a GPU."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


def a_round(rows: int = 12, *, first: int = 30) -> RoundInputs:
    return RoundInputs(
        rows=np.arange(first, first + rows, dtype=np.int64),
        weights=sample_weights([rows], [1], 1),
        noise_scale=0.25,
        noise_seed=1,
        step=0.1,
    )


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rounds_through_the_tables_of_a_device_train_as_eager_ones_do(momentum: float) -> None:
    """Noise differs between the two, so it is made negligible; clients are of unequal size."""
    task = small_task()
    settings = small_settings(momentum=momentum, noise="lemma1", c2=1e-9)
    plan = NoisePlan.of(small_contract(), settings, task.partition.sizes)
    noise, weights = SeededNoise(5), seeded_model().state_dict()
    graphs = RoundsInPlace(seeded_model(), sizes=(60, 120), block=3, momentum=momentum)
    makers: tuple[RoundMaker, ...] = (
        EagerRounds(plan, LoadedTask(task, settings, torch.device("cpu")), noise),
        ReplayedRounds(plan, task.partition, noise, graphs, weights=weights),
    )
    announced: tuple[list[Release], list[Release]] = ([], [])
    eager, replayed = (
        list(made_rounds(maker, announce=into.extend, snapshots=True))
        for maker, into in zip(makers, announced, strict=True)
    )
    assert announced[0] == announced[1]
    for one, other in zip(eager, replayed, strict=True):
        assert (one.snapshot is None) is (other.snapshot is None)
        for name in ("round", "learning_rate", "distinct_clients", *MEASURES[:-1]):
            assert other.metrics[name] == pytest.approx(one.metrics[name], rel=1e-4), name
    torch.testing.assert_close(dict(graphs.model.state_dict()), dict(task.model.state_dict()), rtol=1e-4, atol=1e-6)


def test_a_padded_round_is_the_round_itself() -> None:
    """In weights, momentum and measures; and no row but the round's own is looked at."""
    found = []
    for size in (12, 40):
        rounds = RoundsInPlace(seeded_model(), sizes=(size,), momentum=0.5)
        rounds._noise.normal_(generator=torch.Generator().manual_seed(2))
        elsewhere = torch.ones(len(rounds._inputs), dtype=torch.bool)
        elsewhere[30:42] = False
        rounds._inputs[elsewhere] = torch.nan
        rounds.fill(a_round())
        rounds._round(size)
        assert rounds._velocity is not None
        found.append([*rounds.model.state_dict().values(), rounds._velocity, rounds._measures])
    for exact, padded in zip(*found, strict=True):
        assert bool(torch.isfinite(exact).all())
        torch.testing.assert_close(padded, exact, rtol=1e-6, atol=1e-7)


def test_what_is_not_finite_is_not_applied_nor_anything_after_it() -> None:
    rounds = RoundsInPlace(seeded_model(), sizes=(12,), block=2, momentum=0.5)
    rounds._inputs[30] = torch.nan
    before = {name: value.clone() for name, value in rounds.model.state_dict().items()}
    rounds.fill(a_round(), a_round(first=60))
    rounds._round(12)
    rounds._round(12)
    assert all(torch.equal(before[name], value) for name, value in rounds.model.state_dict().items())
    measures = rounds._measures[:, MEASURES.index("train_loss")]
    assert torch.isfinite(measures).tolist() == [False, True]


def test_a_rehearsal_leaves_no_trace() -> None:
    """Also where the table has but one row: each of several rehearsals begins where the last one did."""
    rounds = RoundsInPlace(seeded_model(), sizes=(12, 40), momentum=0.5)
    rounds.fill(a_round())
    kept = [*rounds.model.state_dict().values(), rounds._next, rounds._sound, rounds._measures, rounds._velocity]
    before = [value.clone() for value in kept if value is not None]
    for size in (40, 12, 12):
        rounds._rehearse(size)
    assert all(torch.equal(a, b) for a, b in zip(before, (v for v in kept if v is not None), strict=True))


def test_every_size_is_rehearsed_before_the_first_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph keeps addresses of scratch memory, which moves when a later size needs more of it."""
    rounds = RoundsInPlace(seeded_model(), sizes=(10, 20, 30))
    order: list[str] = []
    monkeypatch.setattr(rounds, "_rehearse", lambda size: order.append(f"rehearse {size}"))
    monkeypatch.setattr(rounds, "_record", lambda run: order.append("record"))
    rounds._graph(20)
    assert order == ["rehearse 30", "rehearse 20", "rehearse 10", "rehearse 20", "record"]
    rounds._graph(10)
    assert order[5:] == ["rehearse 10", "record"]


def test_blocks_end_where_something_is_evaluated_or_kept() -> None:
    settings = small_settings(rounds=23, evaluate_every=7, checkpoint_every=5)
    for done in (0, 5, 10):
        blocks = list(blocks_between(done, settings))
        assert [index for block in blocks for index in block] == list(range(done, 23))
        assert [block.stop for block in blocks] == [n for n in (5, 7, 10, 14, 15, 20, 21, 23) if n > done]
        assert all(due(block.stop, 7, 23) or due(block.stop, 5, 23) for block in blocks)


def test_many_batch_sizes_are_covered_by_a_few() -> None:
    assert batch_sizes([30, 10, 30, 20]) == (10, 20, 30)
    rows = list(range(7, 700, 3))
    few = batch_sizes(rows)
    assert len(few) == 16
    assert list(few) == sorted(few)
    assert few[-1] == max(rows)


def merged_stages(model: nn.Sequential) -> list[_Merged]:
    found = merged(model, "fp32")
    return [] if found is None else [stage for stage in found._stages if isinstance(stage, _Merged)]


def test_only_pools_that_the_kernels_know_are_merged() -> None:
    def pooling(pool: nn.Module) -> nn.Module | None:
        (stage,) = merged_stages(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), pool))
        return stage.pooling

    assert pooling(nn.MaxPool2d(2)) is not None
    assert pooling(nn.MaxPool2d(3, stride=2)) is not None
    for odd in (nn.MaxPool2d(1, 2), nn.MaxPool2d(16), nn.MaxPool2d((2, 3)), nn.MaxPool2d(2, padding=1)):
        assert pooling(odd) is None


def test_a_convolution_of_which_only_the_bias_is_trained_is_not_merged() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Tanh())
    assert len(merged_stages(model)) == 2
    nn.Module.requires_grad_(model[0], False)
    assert len(merged_stages(model)) == 2
    assert isinstance(model[2], nn.Conv2d)
    model[2].weight.requires_grad_(False)
    assert len(merged_stages(model)) == 1


@pytest.mark.parametrize("pool", [[], [nn.MaxPool2d(2)]])
def test_a_stage_whose_output_is_overwritten_is_not_merged(pool: list[nn.Module]) -> None:
    """Its way back needs that output; within a stage nothing is overwritten, whatever the activation asks for."""
    for last, count in ((nn.ReLU(inplace=True), 0), (nn.ReLU(), 1), (nn.Flatten(), 1)):
        assert len(merged_stages(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), *pool, last))) == count
    assert len(merged_stages(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), *pool))) == 1


def test_a_forward_pass_may_tell_of_layers_that_are_not_trained() -> None:
    """Merged convolutions are told of whether or not they are frozen; only trained ones are captured."""
    trained, frozen = nn.Linear(4, 5), nn.Linear(5, 3).requires_grad_(False)

    def forward(x: Tensor, record: Record) -> Tensor:
        for layer in (trained, frozen):
            y = nn.functional.linear(x, layer.weight, layer.bias)
            record(layer, (x,), y)
            x = y
        return x

    with Capture(nn.Sequential(trained, frozen), {trained: "0"}, cross_entropy, forward) as capture:
        _, calls = capture.run(torch.randn(6, 4), torch.zeros(6, dtype=torch.int64))
    assert list(calls) == ["0"]


@pytest.mark.parametrize("new_names", [False, True])
def test_switches_are_set_and_put_back_by_either_of_their_names(new_names: bool) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if new_names and not hasattr(cudnn, "conv"):
        pytest.skip("this torch has the old names only")
    before = matmul.fp32_precision if new_names else matmul.allow_tf32

    def now() -> tuple[Any, ...]:
        if new_names:
            return matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.deterministic, cudnn.benchmark
        return matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark

    try:
        if new_names:
            matmul.fp32_precision = "tf32"
        outside = now()
        with _switches(tf32=True):
            assert now() == (("tf32", "tf32") if new_names else (True, True)) + (True, False)
            with _switches(tf32=False):
                assert now() == (("ieee", "ieee") if new_names else (False, False)) + (True, False)
            assert now() == (("tf32", "tf32") if new_names else (True, True)) + (True, False)
        assert now() == outside
    finally:
        if new_names:
            matmul.fp32_precision = before


def test_a_run_of_one_card_is_not_resumed_on_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """It would round otherwise, and repeat a round's noise on other gradients."""
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A")
    stored = accelerator(device)
    check_same(tmp_path, stored, accelerator(device))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "B")
    with pytest.raises(RunFolderError, match="begun with card A and here is B; resume with the same card"):
        check_same(tmp_path, stored, accelerator(device))
    assert accelerator(torch.device("cpu")) == {}


def test_a_trial_refuses_a_precision_that_its_device_lacks() -> None:
    trial = Trial(contract=small_contract(), task=small_task(), settings=small_settings(precision="tf32"))
    with pytest.raises(InputError, match="the CPU computes in fp32 only"):
        list(run_trials([trial]))


def test_an_evaluation_is_that_of_all_test_data_whatever_its_chunks() -> None:
    task = small_task()
    inputs, targets = torch.from_numpy(task.dataset.test_inputs), torch.from_numpy(task.dataset.test_targets)
    with torch.no_grad():
        outputs = task.model.eval()(inputs)
    right = outputs.argmax(dim=1) == targets
    shares = [float(right[targets == label].float().mean()) for label in range(3)]
    queued = Evaluator(inputs, targets, num_classes=4, loss=cross_entropy, chunk=7)
    queued.run(task.model)
    for found in (
        Evaluator.read(queued.result),
        evaluate(task.model, inputs, targets, num_classes=4, loss=cross_entropy),
    ):
        assert found.accuracy == float(right.double().mean())
        assert found.class_accuracy == (*(pytest.approx(share) for share in shares), None)
        assert found.loss == pytest.approx(float(cross_entropy(outputs, targets).mean()), rel=1e-6)
