"""The engine on CUDA against the plain paths; every test needs a GPU and is skipped without one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jsam import USBM, Contract, Market, plan
from jsam.mechanism.priors import UniformPrior
from tests.conftest import require

torch = require("torch", extra="train")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from torch import Tensor, nn  # noqa: E402

from benchmarks.sensitivity import KINDS, worst_shift  # noqa: E402
from jsam.training import TaskSpec, TrainingSettings, resume, train  # noqa: E402
from jsam.training.clipping import ClippingEngine, sample_weights  # noqa: E402
from jsam.training.clipping.chunk_worker import Worker  # noqa: E402
from jsam.training.clipping.fused import FusedClipping  # noqa: E402
from jsam.training.clipping.layers import RULES  # noqa: E402
from jsam.training.clipping.precision import PRECISIONS, Precision, arithmetic  # noqa: E402
from jsam.training.clipping.sums import Factors  # noqa: E402
from jsam.training.models import build_model  # noqa: E402
from jsam.training.task import Task  # noqa: E402
from jsam.training.trials import Trial, run_trials  # noqa: E402
from tests.oracles.clipping import ClientBatch, reference_clipped_sum  # noqa: E402

CUDA = torch.device("cuda")
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 1e-2}
# Of a model that is no chain: there bf16 is torch's autocast, forward too.
AUTOCAST = 6e-2


def odd_model() -> nn.Sequential:
    """Strides, dilation, uneven kernels, a pool with overlap, channels that fill no tile."""
    return nn.Sequential(
        nn.Conv2d(3, 20, (3, 5), stride=(2, 1), padding=(1, 2)),
        nn.Tanh(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(20, 37, 3, dilation=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(37, 16, 1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def a_model(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(3)
    if name == "odd":
        model = odd_model()
        model(torch.zeros(2, 3, 17, 15))
        return model.to(CUDA), (3, 17, 15)
    return build_model(name, 3).to(CUDA), {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}[name]


def some_clients(shape: tuple[int, ...], sizes: list[int]) -> list[ClientBatch]:
    source = torch.Generator().manual_seed(4)
    patterns = torch.randn(10, *shape, generator=source)
    found = []
    for size in sizes:
        labels = torch.randint(0, 10, (size,), generator=source)
        images = patterns[labels] + 0.5 * torch.randn(size, *shape, generator=source)
        found.append(ClientBatch(inputs=images.to(CUDA), targets=labels.to(CUDA), multiplicity=1))
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["mnist", "cifar10", "odd"])
def test_a_round_agrees_with_the_reference_path(name: str, precision: Precision) -> None:
    model, shape = a_model(name)
    sizes = [40, 24, 33]
    clients = some_clients(shape, sizes)
    with arithmetic("fp32", CUDA):
        expected = reference_clipped_sum(model, clients, clip_norm=1.0, per_round=3)
    engine = ClippingEngine(model, clip_norm=1.0, precision=precision)
    inputs, targets = (torch.cat([getattr(c, key) for c in clients]) for key in ("inputs", "targets"))
    found = engine.clipped_sum(inputs, targets, sample_weights(sizes, [1, 1, 1], 3, device=CUDA))
    assert engine.path == "fused"
    assert float((found.gradient - expected).norm() / expected.norm()) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["mnist", "cifar10", "odd"])
def test_the_clipped_norm_keeps_its_bound_at_every_precision(name: str, precision: Precision) -> None:
    model, shape = a_model(name)
    (client,) = some_clients(shape, [60])
    norms = ClippingEngine(model, clip_norm=1.0).clipped_sum(*client[:2], torch.ones(60, device=CUDA)).norms
    engine = ClippingEngine(model, clip_norm=float(norms.min()) / 3, precision=precision)
    for i in range(0, 60, 2):
        weights = torch.tensor([1.0, 0.0], device=CUDA)
        alone = engine.clipped_sum(client.inputs[i : i + 2], client.targets[i : i + 2], weights).gradient
        assert float(alone.double().norm()) <= engine.clip_norm


def test_kernels_agree_with_the_plain_rules() -> None:
    """The same engine with every kernel of ours taken out."""
    model, shape = a_model("odd")
    (client,) = some_clients(shape, [50])
    engine = ClippingEngine(model, clip_norm=0.7)
    weights = torch.rand(50, device=CUDA)
    quick = engine.clipped_sum(*client[:2], weights)
    fused: FusedClipping = engine._fused
    fused._workers = [Worker({name: module for module, name in fused._names.items()}, RULES)]
    fused._forward = None
    plain = engine.clipped_sum(*client[:2], weights)
    assert float((quick.gradient - plain.gradient).norm() / plain.gradient.norm()) < 1e-5
    assert float((quick.norms / plain.norms - 1).abs().max()) < 1e-5


class Turned(nn.Module):
    """One column of pixels, turned to a row after the convolution: its gradient's last stride is then not 1."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(2, 5, (3, 1), padding=(1, 0)), nn.Linear(5 * 7, 5)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.convolution(x).transpose(2, 3).contiguous()
        out: Tensor = self.linear(torch.tanh(turned).flatten(1))
        return out


def uncommon(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Uses whose kernels see unusual strides, windows or frozen parameters."""
    torch.manual_seed(6)
    if kind == "one column":
        return Turned(), (2, 7, 1)
    if kind == "kernels of one":
        first, second, last = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 17, 1), nn.Linear(17 * 36, 5)
        return nn.Sequential(first, nn.Tanh(), second, nn.ReLU(), nn.Flatten(), last), (4, 8, 8)
    if kind == "pool of one":
        first, last = nn.Conv2d(2, 4, 3), nn.Linear(16, 5)
        return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(1, 2), nn.Flatten(), last), (2, 6, 6)
    first, second, third, last = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 5, 2), nn.Linear(5, 5)
    second.requires_grad_(False)
    third.weight.requires_grad_(False)
    front = (first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*front, third, nn.Tanh(), nn.Flatten(), last), (2, 6, 6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["one column", "kernels of one", "pool of one", "frozen"])
def test_uncommon_uses_stay_on_the_fused_path(kind: str, precision: Precision) -> None:
    model, shape = uncommon(kind)
    (client,) = some_clients(shape, [20])
    targets = client.targets % 5
    model = model.to(CUDA)
    with arithmetic("fp32", CUDA):
        batch = ClientBatch(inputs=client.inputs, targets=targets, multiplicity=1)
        expected = reference_clipped_sum(model, [batch], clip_norm=0.3, per_round=1)
    engine = ClippingEngine(model, clip_norm=0.3, precision=precision)
    found = engine.clipped_sum(client.inputs, targets, sample_weights([20], [1], 1, device=CUDA))
    assert engine.path == "fused"
    tolerance = AUTOCAST if precision == "bf16" and not isinstance(model, nn.Sequential) else TOLERANCE[precision]
    assert float((found.gradient - expected).norm() / expected.norm()) < tolerance


def test_the_way_back_in_bf16_repeats_and_agrees_with_the_plain_rules() -> None:
    """Products of bf16 numbers are exact in fp32, so sums differ by their order, and where gradients are kept in bf16.

    Rounded to eight bits, each entry of those is off by 2e-3 of itself at most.
    """
    model, shape = a_model("cifar10")
    (client,) = some_clients(shape, [30])
    engine = ClippingEngine(model, clip_norm=1e6, precision="bf16")
    weights = torch.rand(30, device=CUDA)
    quick, again = (engine.clipped_sum(*client[:2], weights).gradient for _ in range(2))
    assert torch.equal(quick, again)
    fused: FusedClipping = engine._fused
    fused._workers = [Worker({name: module for module, name in fused._names.items()}, RULES)]
    plain = engine.unflatten(engine.clipped_sum(*client[:2], weights).gradient)
    kept = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    for name, value in engine.unflatten(quick).items():
        tolerance = 5e-3 if name in kept else 1e-4
        assert float((value - plain[name]).norm() / plain[name].norm()) < tolerance, name


@pytest.mark.parametrize("name", ["mnist", "cifar10", "odd"])
def test_gradients_kept_in_bf16_have_the_norms_that_they_are_clipped_by(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight gradient alone in its sum and not clipped is what was stored: bf16, with the norm that was found."""
    from jsam.training.clipping.gpu.conv_rule import KernelConvRule

    model, shape = a_model(name)
    (client,) = some_clients(shape, [6])
    engine = ClippingEngine(model, clip_norm=1e6, precision="bf16")
    types: set[tuple[object, object]] = set()
    finish = KernelConvRule.finish

    def watched(self: KernelConvRule, factors: Factors) -> None:
        if self._call is not None:
            types.add((self._call.grad_outputs.dtype, self._weights.dtype))
        finish(self, factors)

    monkeypatch.setattr(KernelConvRule, "finish", watched)
    for i in range(6):
        weights = torch.zeros(6, device=CUDA)
        weights[i] = 1.0
        found = engine.clipped_sum(*client[:2], weights)
        assert float(found.norms[i]) == pytest.approx(float(found.gradient.double().norm()), rel=1e-5)
        first = engine.unflatten(found.gradient)["0.weight"]
        assert torch.equal(first, first.bfloat16().double())
        bound = float(found.norms[i]) / 3
        tight = ClippingEngine(model, clip_norm=bound, precision="bf16")
        assert float(tight.clipped_sum(*client[:2], weights).gradient.double().norm()) <= bound
    assert (torch.bfloat16, torch.bfloat16) in types
    assert all(gradient == kept for gradient, kept in types)


def test_no_example_passes_the_clipping_norm_where_rounding_makes_it_longer() -> None:
    """Every entry is 1 + 1.5 · 2⁻⁸, which bf16 rounds up: 0.2 % longer than before, far more than any margin."""
    from jsam.training.clipping.gpu import cuda_rules
    from jsam.training.clipping.layers import Call

    layer = nn.Conv2d(32, 16, 1, bias=False).to(CUDA)
    pixels = torch.tensor([1.0, 1.5 * 2.0**-8], device=CUDA).expand(3, 32, 1, 2).bfloat16()
    call = Call(pixels, torch.ones(3, 16, 1, 2, dtype=torch.bfloat16, device=CUDA))
    for clip_norm in (0.1, 1.0, 7.0):
        worker = Worker({"": layer}, cuda_rules("bf16"))
        worker.add_chunk({"": [call]}, torch.tensor([0.0, 1.0, 0.0], device=CUDA), clip_norm)
        assert clip_norm * (1 - 1e-4) < float(worker.gradients()["weight"].double().norm()) <= clip_norm


@pytest.mark.parametrize(("n", "size"), [(1, 1), (97, 6661), (6000, 1024), (6000, 8192), (500, 147_456)])
def test_the_weighted_sum_of_bf16_rows_agrees_with_torchs_and_repeats(n: int, size: int) -> None:
    from jsam.training.clipping.gpu.card_sums import weighted_sum

    source = torch.Generator(device=CUDA).manual_seed(n)
    rows = torch.randn(n, size, device=CUDA, generator=source).bfloat16()
    factors = torch.rand(n, device=CUDA, generator=source)
    found = weighted_sum(rows, factors)
    assert torch.equal(found, weighted_sum(rows, factors))
    exact = torch.mv(rows.t().double(), factors.double())
    assert float((found - exact).abs().max()) <= 1e-13 * n
    with arithmetic("fp32", CUDA):
        torch.testing.assert_close(found.float(), torch.mv(rows.float().t(), factors), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("n", "outputs", "size"), [(1, 1, 1), (97, 13, 61), (6000, 10, 32), (6000, 32, 512), (16_000, 128, 2048)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_the_sum_of_outer_products_agrees_with_torchs_and_repeats(n: int, outputs: int, size: int, bias: bool) -> None:
    from jsam.training.clipping.gpu.card_sums import outer_norms, outer_sum

    source = torch.Generator(device=CUDA).manual_seed(n)
    g, x = (torch.randn(n, side, device=CUDA, generator=source) for side in (outputs, size))
    factors = torch.rand(n, device=CUDA, generator=source).double()
    norms = torch.empty(n, device=CUDA)
    outer_norms(norms, g, x, bias=bias)
    exact = g.double().norm(dim=1) * (x.double().square().sum(1) + bias).sqrt()
    torch.testing.assert_close(norms, exact.float(), rtol=2e-7, atol=0)
    if n > 1:
        # What counts as nothing may hold anything.
        factors[n // 2] = 0.0
        g[n // 2], x[n // 2, 0] = torch.nan, torch.inf
    found = outer_sum(g, x, factors, bias=bias)
    assert torch.equal(found, outer_sum(g, x, factors, bias=bias))
    scaled = (g.double() * factors[:, None]).nan_to_num()
    expected = torch.cat([(scaled.t() @ x.double().nan_to_num(posinf=0.0)).flatten(), *([scaled.sum(0)] * bias)])
    assert float((found - expected).abs().max()) <= 1e-13 * n


def test_rows_beyond_two_to_the_31_entries_are_summed() -> None:
    from jsam.training.clipping.gpu.card_sums import weighted_sum

    n, size = 15_000, 147_456
    if torch.cuda.mem_get_info()[0] < 3 * n * size:
        pytest.skip("not enough memory on this card")
    rows = torch.zeros((n, size), device=CUDA, dtype=torch.bfloat16)
    rows[-1] = 3.0
    expected = torch.full((size,), 1.5, device=CUDA, dtype=torch.float64)
    assert torch.equal(weighted_sum(rows, torch.full((n,), 0.5, device=CUDA)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [100, 10_000, 100_000])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_record_moves_the_mean_by_no_more_than_its_share(precision: Precision, count: int, kind: str) -> None:
    """The worst cases of tests/redteam/test_sums.py, on the card."""
    assert worst_shift(kind, count, device="cuda", precision=precision) <= 1 + 1e-6


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_example_that_is_not_finite_counts_as_nothing(precision: Precision) -> None:
    model, shape = a_model("mnist")
    (client,) = some_clients(shape, [40])
    inputs, weights = client.inputs.clone(), torch.full((40,), 1 / 40, device=CUDA)
    engine = ClippingEngine(model, clip_norm=1.0, precision=precision)
    emptied = weights.clone()
    emptied[7] = 0.0
    expected = engine.clipped_sum(inputs, client.targets, emptied).gradient
    for value in (torch.nan, torch.inf, 1e38):
        inputs[7] = value
        found = engine.clipped_sum(inputs, client.targets, weights)
        assert float(found.norms[7]) == torch.inf
        assert torch.equal(found.gradient, expected)


def test_an_embedding_repeats_bit_for_bit() -> None:
    """Many examples share few tokens, so that the order of additions would show."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(20, 24), nn.Flatten(), nn.Linear(16 * 24, 10)).to(CUDA)
    tokens = torch.randint(0, 20, (2000, 16), device=CUDA)
    engine = ClippingEngine(model, clip_norm=0.5)
    weights = torch.rand(2000, device=CUDA)
    found = [engine.clipped_sum(tokens, tokens[:, 0] % 10, weights).gradient for _ in range(5)]
    assert engine.path == "fused"
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_gradients_that_are_kept_count_for_the_size_of_a_chunk() -> None:
    model, shape = a_model("cifar10")
    engine = ClippingEngine(model, clip_norm=1.0)
    (client,) = some_clients(shape, [8])
    engine.clipped_sum(*client[:2], torch.ones(8, device=CUDA))
    assert engine._fused._footprint == (189_706, 287_008)
    engine = ClippingEngine(model, clip_norm=1.0, precision="bf16")
    engine.clipped_sum(*client[:2], torch.ones(8, device=CUDA))
    biases = 2 * (32 + 64 + 128)
    assert engine._fused._footprint == (189_706, (287_008 - biases) // 2 + biases)


def a_contract(epsilon_scale: float = 300.0) -> Contract:
    reports = np.random.default_rng(5).uniform(0.05, 1.0, 12)
    market = Market(sensitivities=reports, prior=UniformPrior(bottom=0, top=1))
    return plan(market, USBM(loss_weight=epsilon_scale), payments=False)


def some_settings(**changes: object) -> TrainingSettings:
    base = TrainingSettings(
        rounds=30, per_round=4, learning_rate=0.2, momentum=0.5, evaluate_every=7, checkpoint_every=10, device="cuda",
        noise_seed=0,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def digits(seed: int = 0, scheme: str = "similarity") -> TaskSpec:
    if scheme == "dirichlet":
        return TaskSpec(dataset="digits", num_clients=12, scheme="dirichlet", alpha=1.0, seed=seed)
    return TaskSpec(dataset="digits", num_clients=12, similarity=50.0, seed=seed)


@pytest.mark.parametrize("scheme", ["similarity", "dirichlet"])
def test_replayed_rounds_train_as_the_cpu_does(tmp_path: Path, scheme: str) -> None:
    """Noise differs between devices, so it is made negligible; clients of equal and of unequal size."""
    contract = a_contract(1e12)
    curves = []
    for device in ("cpu", "cuda"):
        settings = some_settings(device=device, noise="lemma1", c2=1e-9, delta=1e-5)
        train(contract, digits(scheme=scheme).build(), settings, tmp_path / device)
        lines = (tmp_path / device / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line) for line in lines])
    for cpu, cuda in zip(*curves, strict=True):
        assert cpu.keys() == cuda.keys()
        for name in ("train_loss", "gradient_norm", "mean_sample_norm", "accuracy", "loss"):
            if name in cpu:
                assert cuda[name] == pytest.approx(cpu[name], rel=2e-3, abs=2e-3), name


def test_a_run_repeats_bit_for_bit_and_resumes_so(tmp_path: Path) -> None:
    whole = train(a_contract(), digits().build(), some_settings(), tmp_path / "whole")
    again = train(a_contract(), digits().build(), some_settings(), tmp_path / "again")
    assert whole.accuracy == again.accuracy
    models = [torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("whole", "again")]

    class StoppedError(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        if record["round"] == 17:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(a_contract(), digits().build(), some_settings(), tmp_path / "broken", progress=stop)
    resume(tmp_path / "broken")
    models.append(torch.load(tmp_path / "broken" / "model.pt", weights_only=True))
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in models[0])
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("whole", "broken")]
    assert ledgers[0] == ledgers[1]


def test_a_secret_keys_noise_is_repeated_on_resume_and_is_another_runs_nowhere(tmp_path: Path) -> None:
    """Replayed graphs draw from the run's key: the same key gives the same model, another key another one."""

    class StoppedError(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        if record["round"] == 17:
            raise StoppedError

    settings = some_settings(noise_seed=None)
    with pytest.raises(StoppedError):
        train(a_contract(), digits().build(), settings, tmp_path / "broken", progress=stop)
    twin = tmp_path / "twin"
    twin.mkdir()
    for name in ("config.json", "contract.json", "schedule.jsonl", "noise.key"):
        shutil.copy(tmp_path / "broken" / name, twin / name)
    train(a_contract(), digits().build(), settings, tmp_path / "other")
    for name in ("broken", "twin"):  # the one from its checkpoint, the other from the first round
        resume(tmp_path / name)
    broken, again, other = (
        torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("broken", "twin", "other")
    )
    assert all(torch.equal(broken[name], again[name]) for name in broken)
    assert not any(torch.equal(broken[name], other[name]) for name in broken)


def test_blocks_of_one_round_train_as_longer_ones_do(tmp_path: Path) -> None:
    """Tables of a single row; unequal clients, so that the first batch is not the largest."""
    for every in (1, 30):
        settings = some_settings(evaluate_every=every, checkpoint_every=30)
        train(a_contract(), digits(scheme="dirichlet").build(), settings, tmp_path / str(every))
    models = [torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("1", "30")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_trials_side_by_side_give_what_single_runs_give(tmp_path: Path) -> None:
    trials, expected = [], []
    for seed in range(5):
        task = digits(seed).build()
        settings = some_settings(seed=seed)
        trials.append(Trial(contract=a_contract(), task=task, settings=settings))
        expected.append(train(a_contract(), digits(seed).build(), settings, tmp_path / str(seed)).accuracy)
    found = dict(run_trials(trials, at_once=3))
    assert [found[i].accuracy for i in range(5)] == expected
    rounds: list[int] = []
    begun = dict(run_trials(trials, at_once=3, progress=rounds.append, late=lambda: bool(rounds)))
    assert {i: result.accuracy for i, result in begun.items()} == dict(enumerate(expected[: len(begun)]))
    assert 1 <= len(begun) <= 3


def test_a_trial_with_dropout_draws_what_a_recorded_run_draws(tmp_path: Path) -> None:
    """Such a model's rounds are computed one by one, on the card too."""

    def task() -> Task:
        plain = digits().build()
        torch.manual_seed(4)
        return dataclasses.replace(
            plain, model=nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10)), spec=None
        )

    recorded = train(a_contract(), task(), some_settings(), tmp_path / "run")
    ((_, result),) = list(run_trials([Trial(contract=a_contract(), task=task(), settings=some_settings())]))
    assert (result.accuracy, result.loss) == (recorded.accuracy, recorded.loss)


def test_a_run_that_diverges_stops_and_says_so(tmp_path: Path) -> None:
    from jsam.errors import TrainingStoppedError

    with pytest.raises(TrainingStoppedError, match="round"):
        train(a_contract(), digits().build(), some_settings(learning_rate=1e38), tmp_path / "run")
    trial = Trial(contract=a_contract(), task=digits().build(), settings=some_settings(learning_rate=1e38))
    ((_, result),) = list(run_trials([trial]))
    assert result.diverged
