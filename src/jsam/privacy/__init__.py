"""Privacy, exactly: noise from the ε a client sold, the schedule it depends on, a ledger of releases, what they cost.

    schedule = Schedule.draw(selection_probs, rounds=1000, per_round=10, seed=1)
    multipliers = noise_multiplier(epsilons, delta, schedule.participations)
    with Ledger("ledger.jsonl") as ledger:
        ledger.append(releases_of_the_round)         # before the update is applied
    check_contract(read_ledger("ledger.jsonl"), epsilons, delta).kept

Everything rounds to the safe side: noise is never below what the contract needs, spending never below what happened.
"""

from __future__ import annotations

from jsam.privacy.accounting import (
    ClientSpending,
    ContractReport,
    check_contract,
    spent_epsilons,
    spent_epsilons_pld,
    spent_mus,
)
from jsam.privacy.adjacency import Adjacency
from jsam.privacy.calibration import noise_multiplier
from jsam.privacy.gaussian import delta_of, epsilon_of, gdp_mu
from jsam.privacy.label_counts import label_noise, left_for_training, sold_in_all
from jsam.privacy.ledger import Ledger, read_ledger
from jsam.privacy.noise import Exact, Lemma1, NoiseRule, needed_c2, noise_names, noise_rule
from jsam.privacy.randomness import KEY_BYTES, derived_seed, generator, keyed_bytes, keyed_normals
from jsam.privacy.releases import Client, Query, Release
from jsam.privacy.schedule import Round, Schedule

__all__ = [
    "KEY_BYTES",
    "Adjacency",
    "Client",
    "ClientSpending",
    "ContractReport",
    "Exact",
    "Ledger",
    "Lemma1",
    "NoiseRule",
    "Query",
    "Release",
    "Round",
    "Schedule",
    "check_contract",
    "delta_of",
    "derived_seed",
    "epsilon_of",
    "gdp_mu",
    "generator",
    "keyed_bytes",
    "keyed_normals",
    "label_noise",
    "left_for_training",
    "needed_c2",
    "noise_multiplier",
    "noise_names",
    "noise_rule",
    "read_ledger",
    "sold_in_all",
    "spent_epsilons",
    "spent_epsilons_pld",
    "spent_mus",
]
