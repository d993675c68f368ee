"""What one owner gains by reporting under several ids: the figures of docs/manipulation.md, as lower bounds.

Nothing in the mechanism stops it. The test is here so that the documents do not say less than is true.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

import jsam

OWN, OTHERS = 0.4, 99
PLANNER = jsam.JSAM(loss_weight=5.0)


def sold_and_paid(ids: int, seed: int) -> tuple[NDArray[np.float64], float]:
    """The ε of each of the owner's ids, and what they are paid together; the others draw from U(0, 1)."""
    others = np.random.default_rng(seed).uniform(0, 1, OTHERS)
    market = jsam.Market(sensitivities=np.concatenate([[OWN] * ids, others]), prior=scipy.stats.uniform(0, 1))
    contract = jsam.plan(market, PLANNER)
    assert contract.payments is not None
    return contract.epsilons[:ids], float(contract.payments[:ids].sum())


@pytest.mark.parametrize("seed", range(4))
def test_several_ids_of_one_owner_gain_what_the_documents_say(seed: int) -> None:
    epsilon, paid = sold_and_paid(1, seed)
    alone = paid - OWN * float(epsilon.sum())
    assert alone > 0
    for ids, least in ((2, 0.9), (10, 7.0)):
        epsilon, paid = sold_and_paid(ids, seed)
        # The same records under every id: each loses the sum of what is sold.
        assert (paid - OWN * float(epsilon.sum())) / alone - 1 > least
    epsilon, paid = sold_and_paid(2, seed)
    # Half of the records under each id: no record loses more than one id sells.
    assert (paid - OWN * float(epsilon.max())) / alone - 1 > 2.0
