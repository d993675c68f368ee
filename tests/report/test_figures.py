"""Figures are drawn from what they are given, show it all, and survive every shape of result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import jsam
from tests.conftest import require

require("matplotlib", extra="plot")

from jsam.report import figures  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were drawn, to look into."""
    kept: list[Figure] = []
    picture = figures._picture

    def keep(figure: Figure, kind: str) -> bytes:
        kept.append(figure)
        return picture(figure, kind)

    monkeypatch.setattr(figures, "_picture", keep)
    return kept


def market(*sensitivities: float, prior: str = "uniform:0,1") -> jsam.Market:
    return jsam.Market(sensitivities=np.array(sensitivities), prior=jsam.parse_prior(prior))


def with_losses() -> jsam.Market:
    reports, losses = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, 4.0, 2.0, 3.0])
    return jsam.Market(sensitivities=reports, prior=jsam.parse_prior("uniform:0,1"), losses=losses)


def spread(count: int) -> jsam.Market:
    return market(*((np.arange(count) + 0.5) / count))


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_a_plan_shows_every_kept_client_and_shades_the_excluded(drawn: list[Figure]) -> None:
    contract = jsam.plan(spread(40), jsam.JSAM(loss_weight=2.0))
    assert 1 < contract.num_selected < 40
    figures.plan_picture(contract)
    (figure,) = drawn
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Selection probability", "Privacy sold", "Payment", "Cost of each client",
    ]  # fmt: skip
    for axis in figure.axes:
        assert axis.get_xlabel().startswith("sensitivity c (money")
        assert all(len(np.asarray(points.get_offsets())) == contract.num_selected for points in axis.collections)
        (shade,) = axis.patches
        kept = contract.selection_probs > 0
        low = shade.get_extents().transformed(axis.transData.inverted()).x0
        assert contract.sensitivities[kept].max() < low < contract.sensitivities[~kept].min()
    payments = figure.axes[2].collections[0].get_offsets()
    assert contract.payments is not None
    np.testing.assert_allclose(np.asarray(payments)[:, 1], contract.payments[contract.selection_probs > 0])
    costs = [np.asarray(points.get_offsets())[:, 1].sum() for points in figure.axes[3].collections]
    assert costs == pytest.approx([contract.expected_cost, float(contract.sensitivities @ contract.epsilons)])


CONTRACTS = {
    "one client": (market(0.5), jsam.JSAM(loss_weight=2.0), True),
    "nobody excluded": (spread(10), jsam.USBM(loss_weight=2.0), True),
    "no payments": (spread(10), jsam.JSAM(loss_weight=2.0), False),
    "infinite virtual cost": (market(0.2, 0.3, 1.0, prior="beta:2,5"), jsam.JSAM(loss_weight=2.0), True),
    "many decades": (market(*np.geomspace(1e-5, 50, 30), prior="lognorm:s=4"), jsam.USBM(loss_weight=2.0), True),
    "excluded all over": (
        with_losses(),
        jsam.BBM(loss_weight=2.0, num_selected=2),
        True,
    ),
}


@pytest.mark.parametrize("case", CONTRACTS)
def test_a_plan_of_any_shape_can_be_drawn(case: str) -> None:
    chosen_market, mechanism, payments = CONTRACTS[case]
    picture = figures.plan_picture(jsam.plan(chosen_market, mechanism, payments=payments))
    assert picture.startswith(PNG)
    assert len(picture) > 20_000


@pytest.mark.parametrize(("kind", "begins"), [("pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", PNG)])
def test_pictures_of_every_kind(kind: str, begins: bytes) -> None:
    assert figures.plan_picture(jsam.plan(spread(5), jsam.JSAM(loss_weight=2.0)), kind).startswith(begins)


def records(*names: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Made-up results of a comparison: figures do not care where numbers come from."""

    def record(name: str, eta: float, noise: float) -> dict[str, Any]:
        return {
            "mechanism": name, "loss_weight": eta, "noise_weight": noise, "expected_cost": eta * noise,
            "loss_bound": 3 / eta, "num_selected": int(20 * eta), "error": None,
        }  # fmt: skip

    sweep = [record(name, eta, 1.0) for name in names for eta in (1.0, 2.0, 4.0)]
    return [record(name, 2.0, 1.0) for name in names], [*sweep, *(record("jsam", eta, 9.0) for eta in (1.0, 4.0))]


def test_a_comparison_has_a_curve_a_mechanism_and_the_papers_points(drawn: list[Figure]) -> None:
    names = ("jsam", "jsam-ci", "usbm", "fsbm-50", "fsbm-75", "bbm-50")
    rows, sweep = records(*names)
    rows.append({**rows[0], "mechanism": "fsbm-9", "error": "cannot be run"})
    figures.compare_picture(rows, sweep)
    (figure,) = drawn
    cost_by_loss, cost_by_weight, selected = figure.axes
    for axis in figure.axes:
        curves = {str(line.get_label()): line for line in axis.lines if not str(line.get_label()).startswith("_")}
        assert set(names) <= set(curves)
        assert "fsbm-9" not in curves
        assert len({line.get_color() for name, line in curves.items() if name in names}) == len(names)
    assert cost_by_loss.get_xlabel() == "loss bound"
    assert cost_by_weight.get_xlabel().startswith("loss weight η")
    assert selected.get_ylabel() == "selected clients"
    stars = next(line for line in selected.lines if str(line.get_label()).startswith("paper"))
    assert np.asarray(stars.get_xydata()).tolist() == [[1.32, 27], [3.45, 41]]
    assert labels(figure) == ["27 @ 1.32", "41 @ 3.45"]
    reference = next(line for line in selected.lines if "noise weight 9" in str(line.get_label()))
    np.testing.assert_allclose(np.asarray(reference.get_xdata()), [9.0, 36.0])
