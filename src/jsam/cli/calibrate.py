"""`jsam calibrate`: the noise that a privacy contract needs."""

from __future__ import annotations

import math
from typing import Annotated

from jsam.cli.options import ResultOptions, examples, option, result_flags, with_options
from jsam.cli.output import Format, say
from jsam.cli.training_options import C2, PRIVACY, AdjacencyOption, Delta, Noise
from jsam.errors import InputError

EXAMPLES = examples(
    "jsam calibrate --epsilon 1 --delta 1e-5 --participations 100",
    "jsam calibrate --epsilon 1 --delta 1e-5 --participations 100 --noise lemma1 --c2 0.1",
)


@with_options
def calibrate(
    *,
    epsilon: Annotated[float, option(PRIVACY, "ε that the client sold.")],
    delta: Delta = 1e-5,
    participations: Annotated[int, option(PRIVACY, "How often the client is drawn over the whole training.")] = 1,
    noise: Noise = "exact",
    c2: C2 = None,
    adjacency: AdjacencyOption = "add-remove",
    result: Annotated[ResultOptions, result_flags(usual=Format.JSON)],
) -> None:
    """Noise standard deviation of one release, divided by C/M, for (ε, δ) over so many draws.

    Exit codes: 0 done, 2 bad input (one line on standard error).
    """
    from jsam.privacy import Adjacency, epsilon_of, noise_multiplier

    result.check()
    if participations < 1:
        raise InputError(f"--participations is {participations}; it must be at least 1")
    if not 0 < epsilon < math.inf:
        raise InputError(f"--epsilon is {epsilon:g}; it must be a finite number above 0")
    multiplier = noise_multiplier(epsilon, delta, participations, noise=noise, c2=c2, adjacency=adjacency)
    content: dict[str, object] = {
        "noise_multiplier": multiplier,
        "epsilon": epsilon,
        "delta": delta,
        "participations": participations,
        "noise": noise,
        "adjacency": adjacency,
    }
    if noise == "lemma1":
        # Lemma 1 with a small c2 is not (ε, δ)-DP; what it is, is always shown beside it.
        spent = float(epsilon_of(Adjacency.of(adjacency).factor * participations**0.5 / multiplier, delta))
        content |= {"c2": c2, "exact_epsilon": spent}
        if spent > epsilon:
            say(f"warning: with c2 {c2:g} the exact accountant gives ε = {spent:.6g}, above the {epsilon:g} asked for")
    lines = [f"{name.replace('_', ' '):<17} {value}" for name, value in content.items()]
    result.deliver(lambda: content, None, lambda: lines)
