"""The numbers and the order of docs/glossary.md."""

from __future__ import annotations

import math
import re

import pytest
from scipy.stats import norm

from jsam.cli import main
from jsam.privacy.gaussian import gdp_mu
from tests.docs.blocks import ROOT

GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("epsilon", "right"), [(1.0, 56), (5.0, 72), (10.0, 85)])
def test_how_often_a_guess_is_right(epsilon: float, right: int) -> None:
    """Telling N(0, 1) from N(μ, 1), both equally likely, succeeds with probability Φ(μ/2) at best."""
    assert math.ceil(100 * norm.cdf(gdp_mu(epsilon, 1e-5) / 2)) == right
    assert re.search(rf"\b{right} times", GLOSSARY)
    assert re.search(rf"ε\s=\s{epsilon:g}\b", GLOSSARY)


def test_terms_stand_in_alphabetical_order() -> None:
    terms = re.findall(r"^## (.+)$", GLOSSARY, flags=re.MULTILINE)
    assert terms == sorted(terms, key=str.casefold)
    assert len(terms) >= 20


def test_the_help_names_the_glossary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "docs/glossary.md" in capsys.readouterr().out
