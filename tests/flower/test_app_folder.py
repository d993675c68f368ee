"""The app folder: settings only, and what it says is what the server reads."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.campaign_rules import CampaignRules
from jsam.campaign.server.server_options import ServerOptions, from_run_config
from jsam.errors import InputError
from jsam.flower.launch.app_folder import pyproject, write_app
from jsam.runs.noise_weight import NoiseWeight
from tests.docs.blocks import ROOT

NEEDED = {"campaign": "a", "store": "s", "clients": 3}


def _config(text: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    return found


@pytest.mark.parametrize(
    "values",
    [
        {"loss_weight": 5.0},
        {"budget": 10.0, "budget_probability": 0.95, "max_selection_prob": 0.5, "seed": 7, "rebind": True},
        {"loss_weight": 5.0, "min_clients": 2, "min_selection_prob": 0.1, "heterogeneity": "classes:2/10"},
        {"loss_weight": 1e-7, "campaign": 'with "quotes" and ε', "momentum": 0.5, "min_share": 0.0},
    ],
)
def test_settings_survive_the_way_through_toml(values: dict[str, Any], tmp_path: Path) -> None:
    given = {**NEEDED, **values}
    folder = write_app(tmp_path, given)
    rules, options = from_run_config(_config((folder / "pyproject.toml").read_text(encoding="utf-8")))
    for name, value in given.items():
        assert value == {**rules.as_dict(), **vars(options)}[name]
    assert CampaignRules.from_dict(rules.as_dict()) == rules


def test_the_example_is_what_this_version_writes() -> None:
    stored = (ROOT / "examples" / "flower" / "pyproject.toml").read_text(encoding="utf-8")
    rules, options = from_run_config(_config(stored), lambda model: 26_010)
    assert rules.rules.noise_weight == NoiseWeight.of(rules.training, num_parameters=26_010, samples=20_000).value
    values = {**rules.as_dict(), **vars(options), "noise_weight": "auto"}
    assert stored == pyproject(values)
    assert isinstance(options, ServerOptions)
    assert sorted(path.name for path in (ROOT / "examples" / "flower").iterdir()) == [
        "LICENSE", "README.md", "pyproject.toml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "loss_weight or budget"),
        ({"loss_weight": 5.0, "budget": 5.0}, "not both"),
        ({"loss_weight": 5.0, "mechanism": "best"}, "unknown mechanism"),
        ({"loss_weight": 5.0, "prior": "normal"}, "normal"),
        ({"loss_weight": 5.0, "rounds": 0}, "rounds is 0"),
        ({"loss_weight": 5.0, "min_share": 2.0}, "min_share is 2"),
        ({"loss_weight": 5.0, "round_seconds": -1.0}, "round_seconds is -1"),
        ({"loss_weight": 5.0, "store": ""}, "store"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_run_config(_config(pyproject({**NEEDED, **values})))


def test_an_automatic_noise_weight_needs_the_number_of_records() -> None:
    config = _config(pyproject({**NEEDED, "loss_weight": 5.0, "noise_weight": "auto"}))
    with pytest.raises(InputError, match="it needs records"):
        from_run_config(config, lambda model: 1000)


def test_a_cap_on_epsilon_holds_unless_it_is_lifted() -> None:
    config = _config(pyproject({**NEEDED, "loss_weight": 5.0}))
    assert from_run_config(config)[0].rules.max_epsilon == 10.0
    assert from_run_config({**config, "max-epsilon": 0.0})[0].rules.max_epsilon is None
    without = {name: value for name, value in config.items() if name != "max-epsilon"}
    assert from_run_config(without)[0].rules.max_epsilon == 10.0


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(InputError, match="nose-weight"):
        from_run_config({**_config(pyproject({**NEEDED, "loss_weight": 5.0})), "nose-weight": 1.0})
    with pytest.raises(InputError, match="nose_weight"):
        pyproject({"nose_weight": 1.0})
