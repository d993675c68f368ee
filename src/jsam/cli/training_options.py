"""The options of training, each named like the argument it stands for in Python."""

from __future__ import annotations

from typing import Annotated, Any

from jsam.cli.options import Flags, option

DATA, TRAINING, PRIVACY = "Data and model", "Training", "Privacy"

SCHEMES = ("similarity", "dirichlet", "writer", "iid")
PRECISIONS = ("fp32", "tf32", "bf16")
LEARNING_RATE_SCHEDULES = ("constant", "cosine", "step", "inverse-sqrt")


Delta = Annotated[float, option(PRIVACY, "δ of the guarantee.")]
Noise = Annotated[str, option(PRIVACY, "exact, or the paper's lemma1 (needs --c2).", choices=("exact", "lemma1"))]
C2 = Annotated[float | None, option(PRIVACY, "Constant of lemma1, which the paper leaves open.", "--c2")]
AdjacencyOption = Annotated[
    str, option(PRIVACY, "One record added or removed (C/M), or replaced (2C/M).", choices=("add-remove", "replace"))
]
_SEED_WORDS = "Draw the noise from this seed, for experiments to be repeated: not private. \\[default: a secret key]"
NoiseSeed = Annotated[int | None, option(PRIVACY, _SEED_WORDS)]


def _flags(panel: str, *options: tuple[str, Any, Any, str], **others: tuple[Any, Any]) -> Flags:
    """Options as name, type or allowed words, default and help. What is not given is left to the library."""
    kinds: dict[str, Any] = {}
    for name, kind, default, words in options:
        if isinstance(kind, tuple):
            kinds[name] = (Annotated[str, option(panel, words, choices=kind)], default)
        else:
            # A flag has no --no- beside it.
            names = (f"--{name}",) if kind is bool else ()
            kinds[name] = (Annotated[kind, option(panel, words, *names)], default)
    kinds |= others
    return Flags(
        {name: declared for name, (declared, _) in kinds.items()},
        _given,
        {name: default for name, (_, default) in kinds.items()},
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    return given if "sizes" not in given else {**given, "sizes": law_or_sizes(given["sizes"])}


def law_or_sizes(text: str) -> str | tuple[int, ...]:
    """A law of sizes as it stands, or the sizes in a file."""
    from jsam.cli.clients import read_sizes
    from jsam.training.partition import is_law

    return text if is_law(text) else read_sizes(text)


SIZES_WORDS = "How many samples each client gets: equal, lognormal:1.0, zipf:1.2, or a CSV file with a column samples."
SIZES_METAVAR = "LAW|FILE.csv"

# Who holds what, as settings of a `TaskSpec`.
PartitionOptions = Annotated[
    dict[str, Any],
    _flags(
        DATA,
        ("scheme", SCHEMES, "similarity", "How samples are dealt out to clients."),
        ("similarity", float | None, None, "Percent of each client's samples drawn uniformly. \\[default: 100]"),
        ("blocks", bool, False, "The rest as one sorted block, not two classes."),
        ("alpha", float | None, None, "Concentration of scheme dirichlet."),
        ("min_size", int | None, None, "Let dirichlet sizes differ, above this."),
        sizes=(Annotated[str | None, option(DATA, SIZES_WORDS, metavar=SIZES_METAVAR)], None),
    ),
]

# How to train, as `TrainingSettings`.
TrainingOptions = Annotated[
    dict[str, Any],
    _flags(
        TRAINING,
        ("rounds", int, 100, "Rounds of training."),
        ("per_round", int, 10, "Draws a round, with replacement."),
        ("clip_norm", float, 1.0, "L2 norm that each sample's gradient is clipped to."),
        ("learning_rate", float | None, None, "Step of SGD. \\[default: fitted to the noise of the contract]"),
        ("learning_rate_schedule", LEARNING_RATE_SCHEDULES, "constant", "How the step changes."),
        ("momentum", float, 0.0, "Momentum of SGD."),
        ("evaluate_every", int, 10, "Rounds between looks at the test set."),
        ("checkpoint_every", int, 20, "Rounds that a kill may cost (they are repeated)."),
        ("device", str, "cpu", "cpu, cuda or cuda:N."),
        ("precision", PRECISIONS, "fp32", "Arithmetic; tf32 and bf16 need cuda."),
        ("threads", int | None, None, "CPU threads; part of what makes a run repeatable."),
        noise_seed=(NoiseSeed, None),
        delta=(Delta, 1e-5),
        noise=(Noise, "exact"),
        c2=(C2, None),
        adjacency=(AdjacencyOption, "add-remove"),
    ),
]
