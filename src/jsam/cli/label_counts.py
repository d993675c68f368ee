"""Buying label counts for a simulation: refused before anybody is charged, or else charged for good."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jsam.cli.output import say
from jsam.cli.rule_options import OpenRules
from jsam.cli.simulated import Reporting
from jsam.mechanism.heterogeneity import heterogeneity
from jsam.mechanism.registry import find_description

if TYPE_CHECKING:
    from jsam.runs.label_counts import LabelCounts
    from jsam.runs.settings import TrainingSettings
    from jsam.training.automatic import TaskWeights
    from jsam.training.label_survey import LabelSurvey
    from jsam.training.task import Task


@contextlib.contextmanager
def charges_named(output: Path) -> Iterator[list[LabelCounts]]:
    """If clients are charged for their label counts and no run comes of it, say so, and how nobody is charged again.

    The caller adds the counts to the list once they are there.
    """
    from jsam.runs.run_folder import RunFolder

    bought: list[LabelCounts] = []
    try:
        yield bought
    except BaseException:
        run = RunFolder(output)
        if run.ledger.exists() and not run.config.exists():
            again = [f"; --heterogeneity {labels.heterogeneity:g} uses what they told" for labels in bought]
            say(f"every client is charged for its label counts already, in {run.ledger}{''.join(again)}")
        raise


def bought_counts(
    simulated: Reporting,
    open_rules: OpenRules,
    weights: TaskWeights,
    task: Task,
    settings: TrainingSettings,
    output: Path,
) -> LabelSurvey:
    """Begin the run: ask all clients for their label counts, at a price that follows from their priors alone.

    First a plan is made as if ζ² were known. So what can never be planned is refused before anybody is charged.
    """
    from jsam.runs.label_counts import LabelCounts, dearest_price
    from jsam.training.label_survey import LabelSurvey

    assert open_rules.label_epsilon is not None
    mechanism = open_rules.rules.mechanism
    description = find_description(mechanism)
    if description is not None and not description.chooses_probs:
        say(f"warning: {mechanism} draws the same clients whatever their label counts say")
    price, dearer = dearest_price(simulated.priors)
    assumed = LabelCounts(
        epsilon=open_rules.label_epsilon,
        price=price,
        dearer=dearer,
        num_clients=simulated.num_clients,
        heterogeneity=heterogeneity(weights.known_heterogeneity),
    )
    rules = open_rules.closed(weights, assumed, settings.delta)
    with contextlib.redirect_stderr(io.StringIO()):  # the plan that counts says the same once more
        simulated.under(rules).contract(task.partition.sizes)
    return LabelSurvey.held(
        output,
        epsilon=assumed.epsilon,
        price=price,
        dearer=dearer,
        ids=simulated.ids,
        split=task.partition,
        data=task.dataset,
        settings=settings,
    )
