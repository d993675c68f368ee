"""Claims are judged by the stored numbers: made-up results with a known answer get that answer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jsam.runs.settings import TrainingSettings
from jsam.sweeps.device_time import add_sweep
from jsam.training.learning_rate import fitted_learning_rate
from jsam.training.task import weights_norm
from reproduction import paper_numbers as published
from reproduction.choosing import choose
from reproduction.claims import all_claims
from reproduction.config import RunConfig
from reproduction.paths import Places
from reproduction.planner_claims import _ratio_verdict
from reproduction.results import Difference, Results
from reproduction.spec import load_specs
from reproduction.tasks import first_model
from reproduction.tuned_settings import Chosen
from reproduction.verdicts import (
    FAILS,
    FAR,
    HOLDS,
    NOISE,
    NOT_RUN,
    SO_FAR,
    TOO_FEW,
    Claim,
    claim_of,
    claim_up_to,
    judged,
    so_far,
)
from tests.reproduction.made_up import choose_noise_weight, copied_places, store, store_planner


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return copied_places(tmp_path)


def claim(places: Places, words: str) -> Claim:
    (found,) = [c for c in all_claims(Results(places)) if words in c.statement]
    return found


def ranked(config: RunConfig) -> float:
    """JSAM 20 points above USBM, FSBM between, BBM last; seeds differ by a point, which hits all alike."""
    levels = {"jsam": 0.9, "jsam-ci": 0.89, "usbm": 0.7, "fsbm-50": 0.8, "fsbm-75": 0.75, "bbm-50": 0.6}
    spread = 0.03 if config.similarity == 0 else 0.01
    return levels[config.mechanism] + spread * config.seed


def test_nothing_stored_means_not_run(places: Places) -> None:
    assert {found.verdict for found in all_claims(Results(places))} == {NOT_RUN}


def test_panels_with_a_known_order(places: Places) -> None:
    store(places, "panels-mnist", ranked)
    assert claim(places, "MNIST: JSAM gains up to 15 points").verdict == HOLDS
    assert claim(places, "MNIST: JSAM is above the best baseline").verdict == HOLDS
    assert claim(places, "MNIST: JSAM is up to 8 points above").verdict == HOLDS
    assert claim(places, "MNIST: fsbm-50 is up to 12").verdict == FAILS
    assert claim(places, "MNIST: accuracy varies more").verdict == HOLDS
    gain = claim(places, "MNIST: JSAM gains at least 8 points")
    assert gain.verdict == HOLDS
    assert "mean +20.0" in gain.numbers
    assert "above 0 in 12 of 12 settings, 3 seeds" in gain.numbers
    assert claim(places, "CIFAR-10: JSAM gains at least 8 points").verdict == NOT_RUN


def test_the_other_way_round_does_not_hold(places: Places) -> None:
    store(places, "panels-mnist", lambda c: 1 - ranked(c))
    assert claim(places, "MNIST: JSAM is above the best baseline").verdict == FAILS
    assert claim(places, "MNIST: JSAM gains at least 8 points").verdict == FAILS


def test_half_a_pair_is_no_pair(places: Places) -> None:
    """Runs of JSAM alone, or of other seeds than USBM's, are compared with nothing."""
    store(places, "panels-mnist", lambda c: 0.9 if (c.mechanism == "jsam") == (c.seed == 0) else None)
    assert claim(places, "MNIST: JSAM gains at least 8 points").verdict == NOT_RUN


def test_the_lead_is_judged_again_with_a_step_for_each(places: Places) -> None:
    """Runs that share one step have no say in it, and the best rival may be one that the panels lack."""
    store(places, "tuning-steps-lemma1-mnist", lambda c: 0.9 if c.learning_rate == 0.05 else 0.4)
    choose(places)
    store(places, "panels-mnist", ranked)
    assert claim(places, "MNIST: JSAM is above USBM at costs up to 3").verdict == NOT_RUN
    store(places, "own-steps-mnist", lambda c: 0.95 if c.mechanism == "fsbm-25" else ranked(c))
    over_usbm = claim(places, "MNIST: JSAM is above USBM at costs up to 3")
    assert (over_usbm.verdict, over_usbm.numbers.partition(",")[0]) == (HOLDS, "mean +20.0 ± 0.0 points")
    assert claim(places, "MNIST: JSAM is above the best of usbm, fsbm-50, fsbm-25").verdict == FAILS


def test_table_values_are_held_against_the_papers(places: Places) -> None:
    paper = {100.0: 0.9905, 70.0: 0.9893 - 0.0049, 30.0: 0.9888 - 0.0051, 0.0: 0.9813}
    store(places, "table-mnist", lambda c: paper[c.similarity] if c.seed == 0 else None)
    verdicts = {s: claim(places, f"MNIST, s = {s:g}: JSAM's table").verdict for s in paper}
    assert verdicts == {100.0: HOLDS, 70.0: HOLDS, 30.0: FAILS, 0.0: HOLDS}
    assert claim(places, "MNIST: at large cost JSAM and USBM are alike").verdict == HOLDS + SO_FAR  # one seed of three


def test_a_gain_of_more_than_twice_the_claim_is_said_to_be_far_larger(places: Places) -> None:
    def apart(config: RunConfig) -> float:
        return ranked(config) - (0.111 if config.mechanism == "usbm" else 0.0)

    store(places, "panels-mnist", ranked)
    assert claim(places, "MNIST: JSAM gains up to 15 points").verdict == HOLDS
    store(places, "panels-mnist", apart)
    found = claim(places, "MNIST: JSAM gains up to 15 points")
    assert found.verdict == FAR
    assert "largest +31.1 against 15" in found.numbers
    store(places, "panels-mnist", lambda c: apart(c) if c.seed == 0 else None)
    assert claim(places, "MNIST: JSAM gains up to 15 points").verdict == so_far(FAR) == "holds so far, far larger"


def test_bbm_is_held_against_each_of_the_others(places: Places) -> None:
    store(places, "panels-mnist", lambda c: ranked(c) + 0.12 * (c.mechanism == "bbm-50"))
    verdicts = {m: claim(places, f"MNIST: BBM is below {m},").verdict for m in ("jsam", "fsbm-50", "fsbm-75", "usbm")}
    assert verdicts == {"jsam": HOLDS, "fsbm-50": HOLDS, "fsbm-75": HOLDS, "usbm": FAILS}
    assert "above 0 in 24 of 24 settings" in claim(places, "MNIST: BBM is below usbm,").numbers


def test_one_run_above_jsam_ci_is_sometimes(places: Places) -> None:
    def lucky(config: RunConfig) -> float:
        one = (config.mechanism, config.similarity, config.cost, config.seed) == ("jsam", 0.0, 2.0, 1)
        return 0.5 if one else 0.4 - 0.2 * (config.mechanism == "jsam")

    store(places, "panels-mnist", lucky)
    found = claim(places, "MNIST: JSAM sometimes outperforms JSAM-CI")
    assert found.verdict == HOLDS
    assert found.numbers.startswith("above in 1 of 72 single runs; mean -19.6")
    assert "above 0 in 0 of 24 settings" in found.numbers
    store(places, "panels-mnist", lambda c: 0.4 - 0.2 * (c.mechanism == "jsam"))
    assert claim(places, "MNIST: JSAM sometimes outperforms JSAM-CI").verdict == FAILS


def test_variability_is_judged_by_a_sign_test(places: Places) -> None:
    """18 of 36 settings that vary more at s = 0 are noise, 35 of them are not."""

    def varies(more: int) -> None:
        ranks: dict[tuple[str, float], int] = {}

        def accuracy(config: RunConfig) -> float:
            rank = ranks.setdefault((config.mechanism, config.cost), len(ranks))
            wide = (config.similarity == 0.0) == (rank < more)
            return 0.5 + (0.02 if wide else 0.01) * config.seed

        store(places, "panels-mnist", accuracy)

    for more, verdict in ((18, NOISE), (35, HOLDS), (1, FAILS)):
        varies(more)
        found = claim(places, "MNIST: accuracy varies more")
        assert found.verdict == verdict
        assert f"in {more} of 36 settings" in found.numbers
    assert "median standard deviation 1.0 points at s = 0, 2.0 at s = 100" in found.numbers
    costs = (1.0, 3.0)
    store(places, "panels-mnist", lambda c: ranked(c) if c.mechanism == "jsam" and c.cost in costs else None)
    assert claim(places, "MNIST: accuracy varies more").verdict == TOO_FEW


def test_equal_runs_are_said_to_be_the_same_contract(places: Places) -> None:
    store(places, "table-mnist", lambda c: 0.98 + 0.001 * c.seed)
    words = "MNIST: at large cost JSAM and USBM are alike"
    assert claim(places, words).numbers == "the same contract, so the same runs (4 settings, 3 seeds)"
    store(places, "table-mnist", lambda c: 0.98, changes=lambda c: {"monetary_cost": 1.0 + (c.mechanism == "usbm")})
    assert claim(places, words).numbers.startswith("mean +0.00 ± 0.00 points")
    store(places, "table-mnist", lambda c: 0.98 + 0.0001 * (c.mechanism == "jsam"))
    assert "0.5 points are allowed" in claim(places, words).numbers


def test_a_bound_that_orders_the_runs_has_rank_correlations_of_one(places: Places) -> None:
    store(places, "panels-mnist", ranked)
    for what, number in (("a higher accuracy", "-1.00"), ("a smaller gradient norm", "+1.00")):
        found = claim(places, f"MNIST: a lower bound goes with {what}")
        assert found.verdict == HOLDS
        assert f"s = 100: {number}; s = 70: {number}" in found.numbers


def test_the_gradient_norm_is_judged_apart_from_accuracy(places: Places) -> None:
    store(places, "panels-mnist", ranked, changes=lambda c: {"gradient_norm": ranked(c)})
    assert claim(places, "MNIST: a lower bound goes with a higher accuracy").verdict == HOLDS
    found = claim(places, "MNIST: a lower bound goes with a smaller gradient norm")
    assert found.verdict == FAILS
    assert "s = 100: -1.00" in found.numbers


def test_a_rank_correlation_takes_twenty_runs(places: Places) -> None:
    """At s = 0 there are six runs in the wrong order: they do not count."""

    def few(config: RunConfig) -> float | None:
        return ranked(config) if config.similarity == 100 or (config.cost, config.seed) == (1.0, 0) else None

    store(places, "panels-mnist", few, changes=lambda c: {"loss_bound": ranked(c)} if c.similarity == 0 else {})
    found = claim(places, "MNIST: a lower bound goes with a higher accuracy")
    assert found.verdict == HOLDS + SO_FAR
    assert "s = 100: -1.00" in found.numbers
    assert "s = 0: too few runs (6)" in found.numbers
    store(places, "panels-mnist", lambda c: few(c) if c.similarity == 0 else None)
    assert claim(places, "MNIST: a lower bound goes with a higher accuracy").verdict == TOO_FEW


@pytest.mark.parametrize(("peak", "verdict"), [(1.0, HOLDS), (30.0, FAILS)])
def test_the_fitted_step_is_held_against_the_best_that_was_tried(places: Places, peak: float, verdict: str) -> None:
    """Accuracy is highest at `peak` times the fitted step; a run taken over from a twin counts once."""
    noise, rounds = 0.05, 1000
    settings = TrainingSettings(rounds=rounds, clip_norm=0.3, learning_rate_schedule="cosine")
    norm = weights_norm(first_model("mnist", 0))
    fitted = fitted_learning_rate(settings, noise_norm=noise * 0.3 * math.sqrt(rounds), weights_norm=norm)

    def accuracy(config: RunConfig) -> float:
        return 0.9 - 0.1 * abs(math.log(config.learning_rate / (peak * fitted)))

    store(places, "tuning-steps-mnist", accuracy, changes=lambda c: {"noise_ratio": noise})
    found = claim(places, "MNIST, exact accounting: the fitted learning rate is within a point")
    assert found.verdict == verdict
    (spec,) = load_specs(places, ["tuning-steps-mnist"])
    near = {
        (c.mechanism, c.cost) for c in spec.runs(Chosen.load(places.chosen)) if 0.5 <= c.learning_rate / fitted <= 2
    }
    assert f"over {len(near)} settings" in found.numbers
    twin = {"noise_ratio": noise, "same_as": "another"}
    store(places, "tuning-steps-mnist", accuracy, changes=lambda c: twin)
    assert claim(places, "MNIST, exact accounting: the fitted learning rate is within a point").verdict == NOT_RUN


def test_steps_that_fall_with_the_noise_are_seen_to(places: Places) -> None:
    for spec_id in ("tuning-steps-mnist", "tuning-steps-wide-mnist"):
        store(places, spec_id, lambda c: 0.9 if c.learning_rate == (1.0 if c.cost < 50 else 3.0) else 0.5)
    choose(places)
    statement = "MNIST, exact accounting: the more noise, the smaller the best learning rate"
    assert claim(places, statement).verdict == NOT_RUN
    store(places, "exact-mnist", lambda c: 0.9, changes=lambda c: {"noise_ratio": 1 / c.learning_rate})
    assert claim(places, statement).verdict == HOLDS
    store(places, "exact-mnist", lambda c: 0.9, changes=lambda c: {"noise_ratio": c.learning_rate})
    assert claim(places, statement).verdict == FAILS


def test_the_straggler(places: Places) -> None:
    def kept(config: RunConfig) -> float:
        return 0.9 if config.mechanism == "jsam" else 0.5 + (config.straggler_epsilon or 0) * 4

    store(places, "straggler", kept)
    found = claim(places, "One client with a tiny ε")
    assert found.verdict == HOLDS
    assert "USBM loses 40.0 points (more than 5 are asked), JSAM 0.0 (less than 2)" in found.numbers
    assert "JSAM never keeps that client" in found.numbers
    store(places, "straggler", lambda c: kept(c) + (0.0001 if c.straggler_epsilon == 0.1 else 0.0))
    assert "never keeps" not in claim(places, "One client with a tiny ε").numbers


@pytest.mark.parametrize(
    ("jsam", "usbm", "verdict"),
    [(2.0, 2.0, HOLDS), (1.0, 2.0, HOLDS), (2.0, 0.5, FAILS), (0.5, 2.0, FAILS)],
    ids=["both convex", "a straight line is convex", "USBM concave", "JSAM concave"],
)
def test_convexity_follows_from_the_stored_curves(places: Places, jsam: float, usbm: float, verdict: str) -> None:
    etas = [0.5 * (place + 1) for place in range(60)]
    curves = {
        name: {"mean": [eta**power for eta in etas], "convex_up_to": None, "cost_there": None}
        for name, power in (("jsam", jsam), ("usbm", usbm))
    }
    store_planner(places, "cost-against-eta", {"etas": etas, "curves": curves})
    found = claim(places, "Cost grows convexly")
    assert found.verdict == verdict
    assert ("USBM's mean cost is √η, concave (8 of 8" in found.numbers) == (usbm == 0.5)


def test_of_bbms_costs_those_inside_the_band_are_counted(places: Places) -> None:
    def ratio(low: float, high: float) -> dict[str, object]:
        return {"mean": 0.84, "band": [low, 0.84, high], "paper": 0.8471, "inside": True}

    store_planner(places, "cost-columns", {"ratios": {"bbm-50/usbm": ratio(0.78, 0.894)}})
    assert "paper's mean 0.8471, 7 of its 8 values in the band" in claim(places, "Cost of bbm-50").numbers
    store_planner(places, "cost-columns", {"ratios": {"bbm-50/usbm": ratio(0.81, 0.88)}})
    assert "3 of its 8 values" in claim(places, "Cost of bbm-50").numbers


def test_a_planners_result_of_another_q_is_not_judged(places: Places) -> None:
    ratio = {"mean": 1.0, "band": [1.0, 1.0, 1.0], "paper": 1.0, "inside": True}
    store_planner(places, "cost-columns", {"ratios": {"jsam/usbm": ratio}})
    store_planner(places, "who-costs-most", {"by_eta": [{"least_sensitive_costs_most": 0.5, "mean_cost": 1.0}]})
    assert claim(places, "Cost of jsam over usbm").verdict == HOLDS
    assert claim(places, "The least sensitive client").verdict == HOLDS
    choose_noise_weight(places, 16.0)
    assert {found.verdict for found in all_claims(Results(places))} == {NOT_RUN}


def test_device_time_is_extrapolated_to_all_runs(places: Places) -> None:
    words = "Device time of the CIFAR-10 panels"
    assert claim(places, words).verdict == NOT_RUN
    store(places, "panels-cifar10", lambda c: 0.5)
    add_sweep(places.results, "panels-cifar10", runs=96, seconds=1200.0, device="a card")
    found = claim(places, words)
    assert (found.verdict, found.numbers) == (HOLDS, "20.0 minutes for 96 runs; extrapolated to all 192: 40.0")
    add_sweep(places.results, "panels-cifar10", runs=96, seconds=2700.0, device="a card")
    found = claim(places, words)
    assert (found.verdict, found.numbers) == (FAILS, "65.0 minutes for 192 runs")


def test_device_time_of_an_experiment_that_was_never_metered_is_not_guessed(places: Places) -> None:
    add_sweep(places.results, "table-mnist", runs=72, seconds=60.0, device="a card")
    found = claim(places, "Device time of both tables")
    assert found.verdict == TOO_FEW
    assert found.numbers == "not metered: table-cifar10, panels-mnist"


def test_two_standard_errors_are_noise() -> None:
    def difference(mean: float, error: float) -> Difference:
        return Difference(mean=mean, error=error, largest=mean, seeds=3, settings=1, ahead=1)

    assert judged(difference(1.0, 0.4)) == HOLDS
    assert judged(difference(1.0, 0.6)) == NOISE
    assert judged(difference(-1.0, 0.4)) == FAILS
    assert judged(difference(9.0, 0.4), 8.0) == HOLDS
    assert judged(difference(8.5, 0.4), 8.0) == NOISE
    assert judged(difference(50.0, math.inf)) == TOO_FEW


def test_the_error_of_a_difference_is_that_of_the_seeds() -> None:
    pairs = [(seed, setting, value) for seed, value in ((0, 1.0), (1, 3.0)) for setting in ("a", "b", "c")]
    found = Difference.of(pairs)
    assert found is not None
    assert found.error == pytest.approx(1.0)
    assert (found.mean, found.seeds, found.settings) == (2.0, 2, 3)
    assert Difference.of([]) is None


def test_one_seed_has_no_error_of_its_own_and_says_so() -> None:
    """However far ahead in every setting: another seed may say otherwise."""
    found = Difference.of([(0, "a", 13.0), (0, "b", 15.0)])
    assert found is not None
    assert str(found).startswith("mean +14.0 ± 1.0 points over settings (one seed), largest +15.0")
    for verdict, words in ((None, "holds (one seed)"), (FAILS, "does not hold (one seed)"), (TOO_FEW, TOO_FEW)):
        assert claim_of("", "", found, verdict).verdict == words
    assert claim_up_to("", "", found, 5).verdict == "holds (one seed), far larger"
    lacking = Difference.of([(0, "a", 13.0), (0, "b", 15.0)], complete=False)
    assert claim_of("", "", lacking).verdict == HOLDS + SO_FAR
    two = Difference.of([(0, "a", 13.0), (1, "a", 15.0)])
    assert claim_of("", "", two).verdict == HOLDS
    assert "one seed" not in str(two)
    alone = Difference.of([(0, "a", 13.0)])
    assert str(alone).startswith("mean +13.0 points, largest +13.0 (above 0 in 1 of 1 setting, 1 seed)")
    assert claim_of("", "", alone).verdict == TOO_FEW


def test_a_setting_with_more_seeds_weighs_no_more_than_another() -> None:
    found = Difference.of([(0, "a", 1.0), (1, "a", 1.0), (2, "a", 1.0), (0, "b", 5.0)], complete=False)
    assert found is not None
    assert found.mean == 3.0
    assert "up to 3 seeds" in str(found)


def test_of_eight_ratios_one_or_two_may_lie_outside_a_95_percent_band_by_chance() -> None:
    ratios = sorted(published.bbm_cost_ratios())
    bands = ((0.0, 2.0, HOLDS), (0.0, ratios[-2], NOISE), (ratios[2], 2.0, NOISE), (ratios[3], 2.0, FAILS))
    for low, high, verdict in bands:
        found = {"band": [low, 1.0, high], "paper": 1.0, "inside": True}
        assert _ratio_verdict("bbm-50/usbm", found) == verdict
    one = {"band": [0.5, 0.6, 0.7], "paper": 0.8, "inside": False}
    assert _ratio_verdict("fsbm-50/usbm", one) == FAILS


def test_ratios_that_draws_do_not_change_hold_as_exactly_as_the_papers_costs_are_known() -> None:
    for pair, ours, paper in (("jsam-ci/jsam", math.sqrt(0.5), 417.5662 / 590.5221), ("jsam/usbm", 1.0, 0.999963)):
        band = [ours] * 3
        assert _ratio_verdict(pair, {"band": band, "paper": paper, "inside": True}) == HOLDS
        for off in (-1e-4, 1e-4):
            assert _ratio_verdict(pair, {"band": band, "paper": ours + off, "inside": False}) == FAILS
