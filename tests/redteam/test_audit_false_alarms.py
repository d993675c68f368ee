"""Honest mechanisms that the audit once accused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import jsam
from jsam.mechanism.audit.misreports import ask
from jsam.mechanism.audit.payment_integral import CLOSER_SHARE, myerson_payment

# v has small jumps: the spikes end at the second to fourth pair of edges.
SPIKY = scipy.stats.rv_histogram(
    (
        np.array(
            [
                0.03572381588103855,
                1412.200020919869,
                0.03572381588103854,
                5147.622308993409,
                0.03572381588103855,
                0.44436999108754693,
                0.03572381588103855,
            ]
        ),
        np.array(
            [
                0.0,
                1.6029577328582425,
                1.602958105789651,
                6.9398784827297275,
                6.939879132596239,
                15.982583910444372,
                15.982589191294371,
                27.884086088671953,
            ]
        ),
    ),
    density=True,
)
MARKET = jsam.Market(sensitivities=np.array([25.27455231710154, 14.184763635151555, 18.9726322265256]), prior=SPIKY)
MECHANISM = jsam.JSAM(loss_weight=7.178619985470662, noise_weight=7.492263705912726)


def test_exact_payments_are_not_accused_of_a_false_error_bound() -> None:
    """A jump of ε lay so that three rules agreed on its panel: the area was off by 7e-7 and said 7e-9."""
    report = jsam.audit(MARKET, MECHANISM, grid=12)
    assert report.ok, [v.message for check in report.checks for v in check.violations]


def test_the_second_look_sees_the_jump_that_the_first_missed() -> None:
    contract = MECHANISM.plan(MARKET)
    assert contract.payments is not None
    claimed = float(contract.payments[1])
    looks = [
        myerson_payment(
            lambda z: ask(MECHANISM, MARKET, 1, z, payments=False)[0],
            float(MARKET.sensitivities[1]),
            SPIKY,
            claimed=claimed,
            tolerance=1e-6 * claimed,
            share=share,
        )
        for share in (1e-8, CLOSER_SHARE)
    ]
    assert abs(looks[0].payment - claimed) > 20 * looks[0].error
    assert looks[1].settled
    assert looks[1].payment == pytest.approx(claimed, rel=1e-9)
