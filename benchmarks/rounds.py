"""One round of clipped gradients, by every way that is timed or weighed: ours, the usual ones, without privacy."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from jsam.privacy import Ledger, Release
from jsam.runs.noise_source import SecretNoise
from jsam.training.clipping import ClippingEngine, cross_entropy, sample_weights
from jsam.training.clipping.sample_gradients import vectorised
from jsam.training.models import build_model
from jsam.training.round_inputs import combined_std, round_noise

Run = Callable[[], object]

CLIP_NORM = 1.0
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
CHUNKS = {"mnist": (300, 600, 1200), "cifar10": (25, 50, 100)}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model, and a round of equal clients for it."""

    model: str
    clients: int
    samples: int
    timed_clients: int
    """Clients that are timed where they go one by one, all alike; their time is scaled up."""
    device: str = "cpu"

    def part(self, clients: int) -> Case:
        return dataclasses.replace(self, clients=clients, timed_clients=clients)

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        n = self.clients * self.samples
        inputs = torch.randn(n, *SHAPES[self.model], generator=generator)
        return inputs.to(self.device), torch.randint(0, 10, (n,), generator=generator).to(self.device)

    def weights(self) -> Tensor:
        return sample_weights([self.samples] * self.clients, [1] * self.clients, self.clients, device=self.device)

    def build(self) -> nn.Module:
        return build_model(self.model, 0).to(self.device)


FULL = (
    Case(model="mnist", clients=10, samples=600, timed_clients=10),
    Case(model="cifar10", clients=10, samples=500, timed_clients=2),
)
QUICK = (
    Case(model="mnist", clients=10, samples=120, timed_clients=10),
    Case(model="cifar10", clients=10, samples=20, timed_clients=2),
)


def ours(case: Case, chunk: int | None = None) -> Run:
    engine = ClippingEngine(build_model(case.model, 0), clip_norm=CLIP_NORM, chunk_size=chunk or "auto")
    images, labels = case.data()
    weights = case.weights()
    return lambda: engine.clipped_sum(images, labels, weights).gradient


def our_whole_round(case: Case, folder: Path) -> Run:
    """With what a round of training has besides: noise, the ledger on disk, and the step."""
    model = build_model(case.model, 0)
    engine = ClippingEngine(model, clip_norm=CLIP_NORM)
    images, labels = case.data()
    weights = case.weights()
    ledger = Ledger(folder / "ledger.jsonl")
    parameters = dict(model.named_parameters())
    done = 0

    @torch.no_grad()
    def step(gradient: Tensor) -> None:
        for name, piece in engine.unflatten(gradient).items():
            parameters[name].add_(piece, alpha=-0.1)

    source = SecretNoise.fresh()

    def run() -> None:
        nonlocal done
        gradient = engine.clipped_sum(images, labels, weights).gradient
        releases = [
            Release.of_draws(
                round=done,
                client=client,
                multiplicity=1,
                noise_multiplier=1.0,
                clip_norm=CLIP_NORM,
                samples=case.samples,
                adjacency="add-remove",
                delta=1e-5,
            )
            for client in range(case.clients)
        ]
        std = combined_std(releases, [1.0] * case.clients, case.clients)
        noise = round_noise(std, engine.parameter_count, source=source, index=done, device=gradient.device)
        ledger.append(releases)
        step(gradient + noise)
        done += 1

    return run


def _clipped_mean(gradients: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(gradients, dim=1)
    return torch.clamp(CLIP_NORM / (norms + 1e-6), max=1.0) @ gradients / len(gradients)


def per_client_func(case: Case) -> Run:
    compute = vectorised(case.build(), cross_entropy)
    images, labels = case.data()

    def run() -> Tensor:
        pairs = zip(torch.split(images, case.samples), torch.split(labels, case.samples), strict=True)
        return (
            sum((_clipped_mean(compute(x, y)[0]) for x, y in pairs), torch.zeros((), device=case.device)) / case.clients
        )

    return run


def per_client_opacus(case: Case) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule  # type: ignore[import-untyped]

        model = GradSampleModule(case.build(), loss_reduction="sum")
    images, labels = case.data()
    parameters = list(model.parameters())

    def run() -> list[Tensor]:
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        for x, y in zip(torch.split(images, case.samples), torch.split(labels, case.samples), strict=True):
            torch.autograd.backward(cross_entropy(model(x), y).sum())
            found: list[Tensor] = [parameter.__dict__["grad_sample"] for parameter in parameters]
            norms = torch.stack([piece.flatten(1).norm(dim=1) for piece in found], dim=1).norm(dim=1)
            factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0) / (case.samples * case.clients)
            for total, piece in zip(totals, found, strict=True):
                total += torch.einsum("i,i...", factors, piece)
            model.zero_grad()
        return totals

    return run


def non_private(case: Case, chunk: int, memory_format: torch.memory_format) -> Run:
    model: nn.Module = build_model(case.model, 0)
    model.to(memory_format=memory_format)  # type: ignore[call-overload]
    images, labels = case.data()
    images = images.contiguous(memory_format=memory_format)
    scale = 1.0 / len(images)

    def run() -> None:
        model.zero_grad()
        for x, y in zip(torch.split(images, chunk), torch.split(labels, chunk), strict=True):
            torch.autograd.backward(cross_entropy(model(x), y).sum() * scale)

    return run


def population(case: Case) -> int:
    """From how many clients `many_small_clients` draws."""
    return 10_000 if case.model == "mnist" and case.samples >= 600 else 1_000


def many_small_clients(case: Case) -> Run:
    """The same number of examples from ten times as many clients, drawn out of many more."""
    size = case.samples // 10
    engine = ClippingEngine(build_model(case.model, 0), clip_norm=CLIP_NORM)
    images = torch.zeros(population(case) * size, *SHAPES[case.model]).uniform_(-1.0, 1.0)
    labels = torch.arange(len(images)) % 10
    count = 10 * case.clients
    generator = torch.Generator().manual_seed(1)

    def run() -> Tensor:
        drawn = torch.randperm(population(case), generator=generator)[:count]
        rows = (drawn[:, None] * size + torch.arange(size)).view(-1)
        return engine.clipped_sum(
            images[rows], labels[rows], sample_weights([size] * count, [1] * count, count)
        ).gradient

    return run
