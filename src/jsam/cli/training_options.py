"""The options of training, each named like the argument it stands for in Python."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

DATA, TRAINING, PRIVACY = "Data and model", "Training", "Privacy"


class NoiseName(StrEnum):
    """How noise is calibrated."""

    EXACT = "exact"
    LEMMA1 = "lemma1"


class AdjacencyName(StrEnum):
    """What one record's change means."""

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"


class SchemeName(StrEnum):
    """How a training set is dealt out to clients."""

    SIMILARITY = "similarity"
    DIRICHLET = "dirichlet"
    WRITER = "writer"
    IID = "iid"


class PrecisionName(StrEnum):
    """In which arithmetic a model runs."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"


class StepSchedule(StrEnum):
    """How the learning rate changes."""

    CONSTANT = "constant"
    COSINE = "cosine"
    STEP = "step"
    INVERSE_SQRT = "inverse-sqrt"


Delta = Annotated[float, typer.Option(help="δ of the guarantee.", rich_help_panel=PRIVACY)]
Noise = Annotated[NoiseName, typer.Option(help="exact, or the paper's lemma1 (needs --c2).", rich_help_panel=PRIVACY)]
C2 = Annotated[
    float | None,
    typer.Option("--c2", help="Constant of lemma1, which the paper leaves open.", rich_help_panel=PRIVACY),
]
NoiseSeed = Annotated[
    int | None,
    typer.Option(
        help="Draw the noise from this seed, for experiments to be repeated: not private. \\[default: a secret key]",
        rich_help_panel=PRIVACY,
    ),
]
AdjacencyOption = Annotated[
    AdjacencyName,
    typer.Option(help="One record added or removed (C/M), or replaced (2C/M).", rich_help_panel=PRIVACY),
]


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Who holds what."""

    scheme: Annotated[SchemeName, typer.Option(help="How samples are dealt out to clients.", rich_help_panel=DATA)] = (
        SchemeName.SIMILARITY
    )
    similarity: Annotated[
        float | None,
        typer.Option(help="Percent of each client's samples drawn uniformly. \\[default: 100]", rich_help_panel=DATA),
    ] = None
    blocks: Annotated[
        bool, typer.Option("--blocks", help="The rest as one sorted block, not two classes.", rich_help_panel=DATA)
    ] = False
    alpha: Annotated[float | None, typer.Option(help="Concentration of scheme dirichlet.", rich_help_panel=DATA)] = None
    min_size: Annotated[
        int | None, typer.Option(help="Let dirichlet sizes differ, above this.", rich_help_panel=DATA)
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train."""

    rounds: Annotated[int, typer.Option(help="Rounds of training.", rich_help_panel=TRAINING)] = 100
    per_round: Annotated[int, typer.Option(help="Draws a round, with replacement.", rich_help_panel=TRAINING)] = 10
    clip_norm: Annotated[
        float, typer.Option(help="L2 norm that each sample's gradient is clipped to.", rich_help_panel=TRAINING)
    ] = 1.0
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Step of SGD. \\[default: fitted to the noise of the contract]", rich_help_panel=TRAINING),
    ] = None
    learning_rate_schedule: Annotated[
        StepSchedule, typer.Option(help="How the step changes.", rich_help_panel=TRAINING)
    ] = StepSchedule.CONSTANT
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.", rich_help_panel=TRAINING)] = 0.0
    evaluate_every: Annotated[
        int, typer.Option(help="Rounds between looks at the test set.", rich_help_panel=TRAINING)
    ] = 10
    checkpoint_every: Annotated[
        int, typer.Option(help="Rounds that a kill may cost (they are repeated).", rich_help_panel=TRAINING)
    ] = 20
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=TRAINING)] = "cpu"
    precision: Annotated[
        PrecisionName, typer.Option(help="Arithmetic; tf32 and bf16 need cuda.", rich_help_panel=TRAINING)
    ] = PrecisionName.FP32
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; part of what makes a run repeatable.", rich_help_panel=TRAINING)
    ] = None
    noise_seed: NoiseSeed = None
    delta: Delta = 1e-5
    noise: Noise = NoiseName.EXACT
    c2: C2 = None
    adjacency: AdjacencyOption = AdjacencyName.ADD_REMOVE


def plain_values(options: PartitionOptions | TrainingOptions) -> dict[str, Any]:
    """The fields as the library takes them: enumerations as their words. What was not given is left to the library."""
    values = {name: value.value if isinstance(value, StrEnum) else value for name, value in vars(options).items()}
    return {name: value for name, value in values.items() if value is not None}
