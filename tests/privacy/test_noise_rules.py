"""Noise rules: known by their files, and asked instead of compared by name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from jsam.cli.app import app
from jsam.errors import InputError
from jsam.privacy import Exact, Lemma1, check_contract, noise, noise_multiplier, noise_names, noise_rule
from jsam.privacy.expected_releases import _MULTIPLIERS
from jsam.privacy.releases import Release

DOUBLE = """
from dataclasses import dataclass, replace
from jsam.privacy.accounting import GAUSSIAN
from jsam.privacy.noise.exact import Exact


def free(releases, delta):
    return {release.client: 0.0 for release in releases}


@dataclass(frozen=True, kw_only=True)
class Double(Exact):
    label = "double"
    accountant = replace(GAUSSIAN, spent=free)

    def multipliers(self, epsilons, delta, participations, adjacency):
        return 2 * super().multipliers(epsilons, delta, participations, adjacency)
"""


def test_what_the_rules_say_of_themselves() -> None:
    assert noise_names() == ("exact", "lemma1")
    assert noise_rule("exact") == Exact()
    assert noise_rule("exact").keeps_contracts
    assert not Lemma1(c2=0.5).keeps_contracts
    assert Lemma1(c2=0.5).words == "the noise follows Lemma 1 with c₂ = 0.5"


def test_every_rule_has_its_option_and_its_second_derivation() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {
        name: parameter.type for name, command in commands.items() for parameter in command.params
        if parameter.name == "noise"
    }  # fmt: skip
    assert options.keys() == {"simulate", "calibrate"}
    for option in options.values():
        assert tuple(option.choices) == noise_names() == tuple(_MULTIPLIERS)


def test_a_rule_is_known_by_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "double.py").write_text(DOUBLE)
    noise._rules.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(noise, "__path__", [*noise.__path__, str(tmp_path)])
            rule = noise_rule("double")
            assert noise_multiplier(1.0, 1e-5, 3, noise="double") == 2 * noise_multiplier(1.0, 1e-5, 3)
    finally:
        sys.modules.pop("jsam.privacy.noise.double", None)
        noise._rules.cache_clear()
    release = Release.of_draws(
        round=0,
        client=0,
        multiplicity=1,
        noise_multiplier=0.1,
        clip_norm=1.0,
        samples=5,
        adjacency="replace",
        delta=1e-5,
    )
    assert not check_contract([release], np.array([1.0]), 1e-5).kept
    assert check_contract([release], np.array([1.0]), 1e-5, accountant=rule.accountant).kept
    with pytest.raises(InputError, match="it must be one of: exact, lemma1"):
        noise_rule("double")
