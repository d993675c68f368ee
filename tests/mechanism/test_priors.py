"""Priors: which are taken and which refused, what they make of a report, and how irregular ones are ironed."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats

import jsam
from jsam.errors import InputError, NotSupportedError, ReportError
from jsam.mechanism import priors
from jsam.mechanism._arrays import FloatArray
from jsam.mechanism.market import virtual_cost_of
from jsam.mechanism.pricing.virtual_cost import VirtualCost
from jsam.mechanism.priors import UniformPrior, file_of_prior, identity_of, read_reports, scipy_family
from tests.mechanism.curves import Mixture

PAST = np.random.default_rng(0).lognormal(-1.0, 0.6, 80)
IRREGULAR: dict[str, Any] = {
    "two peaks": Mixture(scipy.stats.beta(20, 5), scipy.stats.beta(5, 20)),
    "three peaks": Mixture(*(scipy.stats.beta(a, 60 - a) for a in (6, 30, 54))),
    "a gap": Mixture(scipy.stats.uniform(0, 0.3), scipy.stats.uniform(0.6, 0.4)),
    "U-shaped": scipy.stats.beta(0.5, 0.5),
    "histogram": scipy.stats.rv_histogram(np.histogram(np.random.default_rng(1).beta(2, 5, 400), bins=15)),
    "a tail heavier than its body": Mixture(scipy.stats.expon(scale=0.05), scipy.stats.lognorm(s=0.3, scale=2.0)),
}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("uniform:0,1", scipy.stats.uniform(0, 1)),
        ("uniform: 0.5 , 2", scipy.stats.uniform(0.5, 1.5)),
        ("uniform", scipy.stats.uniform()),
        ("uniform:loc=1,scale=2", scipy.stats.uniform(1, 2)),
        ("beta:2,5", scipy.stats.beta(2, 5)),
        ("beta:a=2,b=5,scale=3", scipy.stats.beta(2, 5, scale=3)),
        ("beta:2,5,0.1,2", scipy.stats.beta(2, 5, 0.1, 2)),
        ("lognorm:s=0.5,scale=0.3", scipy.stats.lognorm(s=0.5, scale=0.3)),
        ("truncnorm:a=-2,b=2,loc=0.5,scale=0.2", scipy.stats.truncnorm(-2, 2, 0.5, 0.2)),
        ("expon:scale=0.3", scipy.stats.expon(scale=0.3)),
    ],
)
def test_parsing_gives_scipys_distribution(text: str, same: Any) -> None:
    prior = jsam.parse_prior(text)
    q = np.linspace(0.01, 0.99, 25)
    assert prior.support() == pytest.approx(same.support())
    assert prior.ppf(q) == pytest.approx(same.ppf(q), rel=1e-13)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown distribution ''"),
        ("nosuch:1", "unknown distribution 'nosuch'; allowed: .* uniform:0,1 beta:2,5"),
        ("poisson:3", "unknown distribution 'poisson'"),
        ("rv_continuous:1", "unknown distribution"),
        ("beta(2,5)", "unknown distribution"),
        ("norm:0,1", "down to -inf: they must be positive"),
        ("uniform:-1,1", "down to -1.0: they must be positive"),
        ("lognorm:s=1,loc=-1", "down to -1.0"),
        ("beta:2", "beta takes the shapes a, b, then loc and scale"),
        ("beta:2,5,0,1,7", "takes the shapes"),
        ("beta:q=2", "takes the shapes"),
        ("lognorm", "takes the shapes s"),
        ("beta:-1,5", "no distribution"),
        ("expon:scale=0", "no distribution"),
        ("truncnorm:a=2,b=-2", "no distribution"),
        ("uniform:1", "takes its two ends"),
        ("uniform:1,0", "the second end must lie above the first"),
        ("uniform:1,1", "the second end must lie above the first"),
        ("uniform:0,x", "'x' is no number"),
        ("uniform:0,inf", "'inf' is not finite"),
        ("beta:2,nan", "'nan' is not finite"),
        ("beta:2;5", "'2;5' is no number"),
        ("beta:a=2,5", "'5' stands after a named argument"),
    ],
)
def test_bad_priors_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        jsam.parse_prior(text)
    assert "\n" not in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("prior", "says"),
    [
        (scipy.stats.norm(0.5, 0.1), "down to -inf"),
        (scipy.stats.uniform(-0.1, 1), "down to -0.1"),
        (scipy.stats.poisson(3), "no frozen continuous"),
        (scipy.stats.beta, "no frozen continuous"),
        (0.5, "no frozen continuous"),
        ("uniform:0,1", "no frozen continuous"),
        (None, "no frozen continuous"),
    ],
)
def test_what_is_no_prior_is_refused(prior: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        jsam.Market(sensitivities=np.array([0.3]), prior=prior)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sensitivities": []}, "no clients"),
        ({"sensitivities": ["a", "b"]}, "must be numbers"),
        ({"sensitivities": [[0.1, 0.2]]}, "2 dimensions"),
        ({"sensitivities": [0.1, math.nan]}, "client 'b' reports nan: .* positive, finite"),
        ({"sensitivities": [0.1, 1e-310]}, "client 'b' reports 1e-310: .* too small to compute with"),
        ({"sensitivities": [0.1, math.inf]}, "client 'b' reports inf"),
        ({"sensitivities": [0.0, 0.5]}, "client 'a' reports 0"),
        ({"sensitivities": [0.1, -0.5]}, "client 'b' reports -0.5"),
        ({"sensitivities": [0.1, 1.5]}, r"client 'b' reports 1.5: it lies outside the prior's support \[0, 1\]"),
        ({"ids": ["a"]}, "1 ids for 2 clients"),
        ({"ids": ["a", "a"]}, "id 'a' stands twice"),
        ({"prior": [scipy.stats.uniform(0, 1)]}, "1 priors for 2 clients"),
        ({"losses": [1.0]}, "losses must be 2 finite numbers"),
        ({"losses": [1.0, math.nan]}, "losses must be 2 finite numbers"),
        ({"losses": ["x", "y"]}, "losses must be numbers"),
        ({"samples": [5, 0]}, "samples must be 2 whole numbers"),
        ({"samples": [5]}, "samples must be 2 whole numbers"),
    ],
)
def test_bad_markets_are_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    good: dict[str, Any] = {"sensitivities": [0.1, 0.5], "prior": scipy.stats.uniform(0, 1), "ids": ["a", "b"]}
    jsam.Market(**good)
    with pytest.raises(InputError, match=says) as caught:
        jsam.Market(**{**good, **changes})
    assert "\n" not in str(caught.value)


def test_refusals_have_a_kind_of_their_own_where_a_caller_needs_it() -> None:
    with pytest.raises(ReportError) as caught:
        jsam.Market(sensitivities=np.array([0.1, 0.2, 1.5]), prior=scipy.stats.uniform(0, 1))
    assert caught.value.client == 2
    unequal = jsam.Market(sensitivities=np.array([0.1, 0.2]), prior=scipy.stats.uniform(0, 1), samples=[10, 20])
    with pytest.raises(NotSupportedError):
        jsam.plan(unequal, jsam.mechanism_named("posted-price", budget=1.0))
    jsam.Market(sensitivities=np.array([0.1, 0.2]), prior=scipy.stats.uniform(0, 1), samples=[10, 10])


def beta_virtual_cost(z: FloatArray, a: float, b: float) -> FloatArray:
    """c + I_c(a, b) B(a, b) / (c^(a−1) (1 − c)^(b−1)) from the special functions."""
    return np.asarray(
        z + scipy.special.betainc(a, b, z) * scipy.special.beta(a, b) / (z ** (a - 1) * (1 - z) ** (b - 1))
    )


def test_virtual_costs_of_known_distributions() -> None:
    """Uniform 2c − a, exponential c + (e^{λc} − 1)/λ, power law c(1 + 1/k), Pareto, beta by special functions."""
    z = np.linspace(0.05, 0.95, 19)
    cases: list[tuple[Any, FloatArray]] = [
        (scipy.stats.uniform(0, 1), 2 * z),
        (UniformPrior(bottom=0.0, top=1.0), 2 * z),
        (scipy.stats.uniform(0.05, 4), 2 * z - 0.05),
        (scipy.stats.expon(scale=0.5), z + np.expm1(2 * z) / 2),
        (scipy.stats.powerlaw(3), z * (1 + 1 / 3)),
        (scipy.stats.pareto(2, scale=0.01), z + ((z / 0.01) ** 2 - 1) * z / 2),
        (scipy.stats.beta(2, 5), beta_virtual_cost(z, 2, 5)),
        (scipy.stats.beta(1.5, 1.2), beta_virtual_cost(z, 1.5, 1.2)),
    ]
    for prior, expected in cases:
        cost = VirtualCost.of(prior)
        assert not cost.ironed
        assert cost(z) == pytest.approx(expected, rel=1e-12)


def test_far_out_in_a_tail_the_ratio_survives() -> None:
    """At 30 standard deviations below F and f are both 1e-197; v must still be c + F/f."""
    cost = VirtualCost.of(scipy.stats.truncnorm(-40, 40, loc=40.0, scale=1.0))
    z = np.array([10.0])
    below = 30.0
    mills = 1 / below - 1 / below**3 + 3 / below**5  # F/f of a Gaussian far below its mean
    assert cost(z) == pytest.approx(z + mills, rel=1e-6)


def test_the_ends_of_the_support() -> None:
    uniform, beta = VirtualCost.of(scipy.stats.uniform(0.2, 1)), VirtualCost.of(scipy.stats.beta(2, 5))
    assert uniform(np.array([0.2])) == pytest.approx([0.2])  # no mass below: nothing is paid for not knowing
    assert (uniform.bottom, uniform.top, uniform.at_top) == pytest.approx((0.2, 1.2, 2.2))
    assert beta.at_top == math.inf  # the density vanishes there
    assert VirtualCost.of(scipy.stats.expon()).at_top == math.inf


def minorant_slopes(prior: Any, points: int) -> tuple[FloatArray, FloatArray]:
    """Slopes of the convex minorant of q·ppf(q) at the middles of a fine grid: an isotonic regression of its steps."""
    q = np.linspace(1e-9, 1 - 1e-9, points)
    z = np.asarray(prior.ppf(q))
    steps = np.diff(q * z) / np.diff(q)
    slopes = scipy.optimize.isotonic_regression(steps).x
    return np.asarray(prior.ppf((q[1:] + q[:-1]) / 2)), np.asarray(slopes)


@pytest.mark.parametrize("name", IRREGULAR)
def test_ironed_cost_is_the_slope_of_the_convex_minorant(name: str) -> None:
    """Against an isotonic regression on 20,000 quantiles, everywhere but within a step of an edge."""
    prior = IRREGULAR[name]
    cost = VirtualCost.of(prior)
    assert cost.ironed
    z, slopes = minorant_slopes(prior, 20_001)
    found = cost(z)
    inside = slice(20, -20)
    near = np.isclose(found, slopes, rtol=2e-3)[inside]
    assert near.mean() > 0.995
    on_flats = np.zeros(len(z), dtype=bool)
    for flat in cost.flats:
        on_flats |= (z > flat.low) & (z < flat.high)
        assert np.all(cost(np.linspace(flat.low, flat.high, 50)) == flat.level)
    assert on_flats.any()
    assert np.isclose(found, slopes, rtol=2e-3)[on_flats].mean() > 0.99


@pytest.mark.parametrize("name", IRREGULAR)
def test_ironed_cost_never_falls(name: str) -> None:
    prior = IRREGULAR[name]
    cost = VirtualCost.of(prior)
    edges = np.array([x for flat in cost.flats for x in (flat.low, flat.high)])
    around = (edges[:, None] * (1 + np.linspace(-1e-3, 1e-3, 201))).ravel()
    z = np.concatenate([np.asarray(prior.ppf(np.linspace(1e-6, 1 - 1e-6, 20_001))), around])
    z = np.unique(z[(z > cost.bottom) & (z < cost.top)])
    v = cost(z)
    assert np.all(np.diff(v) >= -1e-9 * v[1:])
    assert np.all(v >= 0)


@pytest.mark.parametrize("name", ["two peaks", "three peaks", "a gap"])
def test_without_ironing_it_would_fall(name: str) -> None:
    """These priors really are irregular: c + F/f falls somewhere, or has no value in a gap."""
    prior = IRREGULAR[name]
    z = np.linspace(0.01, 0.99, 2001)
    with np.errstate(divide="ignore"):
        raw = z + np.asarray(prior.cdf(z)) / np.asarray(prior.pdf(z))
    falls = np.diff(raw[np.isfinite(raw)]).min() < -0.05
    assert falls or np.isinf(raw).any()


def test_ironing_keeps_the_mean_over_each_flat() -> None:
    """The level is the mean of c + F/f over the flat: what the server pays on average does not change."""
    prior = IRREGULAR["two peaks"]
    cost = VirtualCost.of(prior)
    for flat in cost.flats:
        mass = float(prior.cdf(flat.high) - prior.cdf(flat.low))
        mean, _ = scipy.integrate.quad(lambda z: float(z * prior.pdf(z) + prior.cdf(z)), flat.low, flat.high)
        assert flat.level == pytest.approx(mean / mass, rel=1e-6)


def test_reports_in_a_gap_cost_what_the_flat_costs() -> None:
    """No density between 0.3 and 0.6: a report there lies between the ends of the support and gets the flat's level."""
    cost = VirtualCost.of(IRREGULAR["a gap"])
    (flat,) = cost.flats
    assert flat.low <= 0.3
    assert flat.high > 0.6
    assert np.all(cost(np.array([0.31, 0.45, 0.59])) == flat.level)


def test_regular_priors_are_left_alone() -> None:
    for prior in (
        scipy.stats.beta(2, 5),
        scipy.stats.beta(1, 1),
        scipy.stats.expon(),
        scipy.stats.lognorm(s=1.0),
        scipy.stats.truncnorm(-2, 2, loc=0.5, scale=0.2),
        scipy.stats.gamma(2.0),
        scipy.stats.weibull_min(1.5),
        scipy.stats.halfcauchy(),
    ):
        assert not VirtualCost.of(prior).ironed


def test_a_report_is_found_from_its_virtual_cost() -> None:
    """The lowest report that reaches v: the inverse where v rises, the start of a flat on it, the far end beyond."""
    rng = np.random.default_rng(3)
    for prior in (scipy.stats.beta(2, 5), scipy.stats.lognorm(s=1.0), scipy.stats.pareto(1.5), *IRREGULAR.values()):
        cost = VirtualCost.of(prior)
        low = np.asarray(prior.ppf(rng.uniform(0.01, 0.5, 64)))
        far = np.full(64, min(cost.far_report(), 1e12))
        z = low + (np.minimum(np.asarray(prior.ppf(0.999)), far) - low) * rng.uniform(0, 1, 64)
        v = np.maximum(cost(z), cost(low))
        found = cost.report_at(v, low, far)
        assert np.all(found <= z * (1 + 1e-12))
        assert np.all(cost(found) >= v)
        assert np.all((cost(np.maximum(found * (1 - 1e-12), low)) < v) | (found <= low * (1 + 1e-12)))
        assert np.all(cost.report_at(np.full(64, 1e299), low, far) == far)
        for flat in cost.flats:
            start = cost.report_at(np.array([flat.level]), np.array([0.5 * flat.low]), far[:1])
            assert start == pytest.approx([flat.low], rel=2e-2)


def test_equal_distributions_share_their_virtual_cost() -> None:
    """Looking for irregular stretches takes time; a thousand clients with equal priors look once."""
    assert virtual_cost_of(scipy.stats.beta(2, 5)) is virtual_cost_of(scipy.stats.beta(2, 5))
    assert virtual_cost_of(scipy.stats.beta(2, 5)) is not virtual_cost_of(scipy.stats.beta(2, 6))
    assert virtual_cost_of(scipy.stats.beta(2, 5)) is not virtual_cost_of(scipy.stats.gamma(2, 5))


def test_empirical_density_and_its_functions_agree() -> None:
    prior = jsam.EmpiricalPrior(reports=PAST)
    x = np.geomspace(1e-3, 30, 4001)
    pdf, cdf = np.exp(prior.logpdf(x)), np.exp(prior.logcdf(x))
    assert scipy.integrate.simpson(pdf, x=x) == pytest.approx(1, abs=1e-6)
    assert scipy.integrate.cumulative_simpson(pdf, x=x, initial=0) == pytest.approx(cdf, abs=1e-6)
    assert np.exp(prior.logsf(x)) == pytest.approx(1 - cdf, abs=1e-13)
    q = np.linspace(0.001, 0.999, 99)
    assert np.exp(prior.logcdf(prior.ppf(q))) == pytest.approx(q, rel=1e-10)
    assert prior.isf(q) == pytest.approx(prior.ppf(1 - q), rel=1e-9)
    assert np.exp(prior.logsf(prior.isf(1e-30))) == pytest.approx(1e-30, rel=1e-6)
    assert prior.support() == (0.0, math.inf)


def test_empirical_draws_follow_the_density() -> None:
    prior = jsam.EmpiricalPrior(reports=PAST)
    draws = prior.rvs(size=4000, random_state=np.random.default_rng(4))
    assert scipy.stats.kstest(draws, lambda x: np.exp(prior.logcdf(x))).pvalue > 0.01
    assert scipy.stats.kstest(draws * 1.1, lambda x: np.exp(prior.logcdf(x))).pvalue < 0.01
    again = prior.rvs(size=4000, random_state=np.random.default_rng(4))
    assert np.array_equal(draws, again)


def test_empirical_prior_comes_near_the_truth_and_plans() -> None:
    """From 5,000 reports of a lognormal (summarised by 512 quantiles) v is within a few percent of the true one."""
    truth = scipy.stats.lognorm(s=0.5, scale=0.3)
    prior = jsam.EmpiricalPrior(reports=truth.rvs(size=5000, random_state=np.random.default_rng(5)))
    z = np.asarray(truth.ppf(np.linspace(0.1, 0.9, 17)))
    assert VirtualCost.of(prior)(z) == pytest.approx(VirtualCost.of(truth)(z), rel=0.1)
    c = truth.rvs(size=30, random_state=np.random.default_rng(6))
    contract = jsam.plan(jsam.Market(sensitivities=c, prior=prior), jsam.JSAM(loss_weight=5.0))
    assert contract.payments is not None
    assert np.all(contract.payments >= c * contract.epsilons)


def test_empirical_regularity_is_shown() -> None:
    """Two clusters of past reports make an irregular prior; the market and the contract say that it was ironed."""
    apart = np.concatenate(
        [np.random.default_rng(7).lognormal(-3, 0.1, 40), np.random.default_rng(8).lognormal(0, 0.1, 40)]
    )
    together = np.random.default_rng(9).lognormal(-1, 0.5, 2000)
    for reports, ironed in ((apart, True), (together, False)):
        market = jsam.Market(sensitivities=np.array([0.1, 0.4]), prior=jsam.EmpiricalPrior(reports=reports))
        assert market.ironed is ironed
        assert jsam.plan(market, jsam.JSAM(loss_weight=3.0), payments=False).as_dict()["ironed"] is ironed


@pytest.mark.parametrize(
    ("reports", "says"),
    [
        ([0.1, 0.2, 0.3, 0.4], "at least 5"),
        ([0.1, 0.2, 0.3, 0.4, -1.0], "positive and finite"),
        ([0.1, 0.2, 0.3, 0.4, math.nan], "positive and finite"),
        ([0.2] * 9, "all equal"),
    ],
)
def test_useless_past_reports_are_refused(reports: list[float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        jsam.EmpiricalPrior(reports=np.array(reports))


def test_past_reports_from_files(tmp_path: Path) -> None:
    """A `sensitivity` column anywhere, or a bare column; BOM, CRLF and blank lines as a spreadsheet leaves them."""
    headed = tmp_path / "headed.csv"
    headed.write_bytes("\ufeffid,sensitivity\r\na,0.1\r\n\r\nb,0.2\r\nc,0.3\r\nd,0.4\r\ne,0.5\r\n".encode())
    bare = tmp_path / "bare.csv"
    bare.write_text("0.1\n0.2\n0.3\n0.4\n0.5\n")
    assert read_reports(headed).tolist() == read_reports(bare).tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    prior = jsam.parse_prior(f"empirical:{headed}")
    assert prior.ppf(0.5) == pytest.approx(jsam.EmpiricalPrior(reports=read_reports(bare)).ppf(0.5))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"id,sensitivity\na,0.1\nb,x\n", "line 3: 'x' is no sensitivity"),
        (b"id,sensitivity\na,0.1\nb,\n", "line 3: '' is no sensitivity"),
        (b"id,sensitivity\na,0.1\n\nb,-1\n", "line 4: '-1' is no sensitivity; a positive number is needed"),
        (b"0.1\n0.2\n", "at least 5 past reports, got 2"),
        (b"", "at least 5 past reports, got 0"),
        (bytes(range(256)), "not a text file"),
    ],
)
def test_bad_files_of_past_reports_are_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "past.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        jsam.parse_prior(f"empirical:{path}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(InputError, match="cannot read past reports"):
            jsam.parse_prior(f"empirical:{path}")


def test_families_with_state_of_their_own_are_not_taken_for_each_other() -> None:
    """Two histograms have equal names and arguments and yet differ."""
    low = scipy.stats.rv_histogram((np.array([1, 2, 1]), np.linspace(0.1, 0.6, 4)))()
    high = scipy.stats.rv_histogram((np.array([1, 2, 1]), np.linspace(5.0, 10.0, 4)))()
    assert virtual_cost_of(low).top == 0.6
    assert virtual_cost_of(high).top == 10.0
    assert scipy_family(low) is None
    assert scipy_family(scipy.stats.beta(2, 5)) == "beta"


def test_a_users_family_called_uniform_is_not_taken_for_the_uniform() -> None:
    class Square(scipy.stats.rv_continuous):
        def _cdf(self, x: Any, *args: Any) -> Any:
            return x**2

        def _pdf(self, x: Any, *args: Any) -> Any:
            return 2 * x

    prior = Square(a=0.0, b=1.0, name="uniform")()
    assert virtual_cost_of(prior)(np.array([0.5]))[0] == pytest.approx(0.75)


def test_equal_distributions_share_one_virtual_cost() -> None:
    assert virtual_cost_of(scipy.stats.beta(2, 5)) is virtual_cost_of(scipy.stats.beta(2, 5))


def test_a_kind_of_prior_is_known_by_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "points.py").write_text(
        "from jsam.mechanism.priors.base import PriorKind\n"
        "from jsam.mechanism.priors.uniform import UniformPrior\n"
        "KIND = PriorKind(name='points', make=lambda file: UniformPrior(bottom=0.0, top=float(len(file))), "
        "reads_file=True)\n"
    )
    priors._kinds.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(priors, "__path__", [*priors.__path__, str(tmp_path)])
            assert jsam.parse_prior("points:abc").support() == (0.0, 3.0)
            assert file_of_prior(" points : abc ") == "abc"
    finally:
        sys.modules.pop("jsam.mechanism.priors.points", None)
        priors._kinds.cache_clear()
    with pytest.raises(InputError, match="unknown distribution 'points'"):
        jsam.parse_prior("points:1")


def test_the_file_that_a_prior_reads() -> None:
    assert file_of_prior("empirical:past.csv") == "past.csv"
    assert file_of_prior("uniform:0,1") is None
    assert file_of_prior("nosuch:0,1") is None


def test_priors_are_told_apart_by_their_values() -> None:
    first, second = (jsam.EmpiricalPrior(reports=PAST[order]) for order in (np.arange(80), np.arange(80)[::-1]))
    assert identity_of(first) == identity_of(second) != identity_of(jsam.EmpiricalPrior(reports=PAST[1:]))
    assert identity_of(scipy.stats.beta(2, 5)) == identity_of(scipy.stats.beta(2, 5))
    assert (
        identity_of(scipy.stats.beta(2, 5))
        == identity_of(scipy.stats.beta(2.0, b=5))
        != identity_of(scipy.stats.beta(2, 6))
    )
    assert identity_of(Mixture(scipy.stats.beta(20, 5), scipy.stats.beta(5, 20))) is None
