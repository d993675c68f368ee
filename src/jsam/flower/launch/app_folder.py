"""The thin app folder that `flwr run` packs and ships: settings, and the names of two apps that jsam itself holds.

There is no code in it. What clips and adds noise is whatever jsam the client has installed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsam.campaign.campaign_rules import EQUAL, SETTINGS, CampaignRules
from jsam.campaign.server.server_options import OPTIONAL, ServerOptions
from jsam.errors import InputError
from jsam.mechanism.rules import WHOLE, WORDS

_HEAD = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "jsam-campaign"
version = "1.0.0"
description = "Buy privacy truthfully and train under exactly those contracts"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0,<1.42"]

[tool.flwr.app]
publisher = "jsam"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "jsam.flower.server_app:app"
clientapp = "{clientapp}"

# What is published before anybody reports. 0 or "" means: none. Give loss-weight or budget, not both.
[tool.flwr.app.config]
"""
_OPTIONS = """
# How the server goes about it. `store` is a folder on the server, `dataset` its own test data by name.
"""
_LICENSE = """\
Licensed under the Apache License, Version 2.0; you may not use these files except in compliance with the License.
You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
"""

CLIENT_APP = "jsam.flower.client_app:app"


def pyproject(values: Mapping[str, Any], *, clientapp: str = CLIENT_APP) -> str:
    """The text of pyproject.toml with these settings (words with underscores) and defaults for the others."""
    options = {field.name: field.default for field in dataclasses.fields(ServerOptions)}
    unknown = values.keys() - {*SETTINGS, *options}
    if unknown:
        raise InputError(f"unknown settings: {', '.join(sorted(unknown))}")
    usual = {**CampaignRules.from_dict({"campaign": "-", "loss_weight": 1.0}).as_dict(), "sizes": EQUAL}
    open_yet = ("campaign", "loss_weight")
    rules = {name: values.get(name, None if name in open_yet else usual.get(name)) for name in SETTINGS}
    conduct = {name: values.get(name, default) for name, default in options.items()}
    return _HEAD.replace("{clientapp}", clientapp) + _lines(rules) + _OPTIONS + _lines(conduct)


def write_app(folder: Path, values: Mapping[str, Any], *, clientapp: str = CLIENT_APP) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(pyproject(values, clientapp=clientapp), encoding="utf-8")
    (folder / "LICENSE").write_text(_LICENSE, encoding="utf-8")
    return folder


def _lines(values: Mapping[str, Any]) -> str:
    lines = []
    for name, value in values.items():
        if value is None or value is dataclasses.MISSING:
            value = "" if name not in OPTIONAL or name in WORDS else 0 if name in WHOLE else 0.0
        lines.append(f"{name.replace('_', '-')} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # TOML wants a point or an exponent in a float; repr always has one.
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
