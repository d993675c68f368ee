"""How a server goes about its campaign, and the settings of both as a transport's configuration has them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from jsam.campaign.campaign_rules import SETTINGS, CampaignRules
from jsam.campaign.checked import ALLOWED, is_name, whole_number
from jsam.campaign.identity import public_key_text
from jsam.errors import InputError
from jsam.mechanism.heterogeneity import with_records
from jsam.mechanism.rules import AUTO, LATER
from jsam.runs.noise_weight import NoiseWeight

_SECONDS = ("wait_seconds", "elicit_seconds", "offer_seconds", "round_seconds", "repeat_seconds")
# These may be missing, which a configuration of Flower's says by an empty text or by 0.
OPTIONAL = ("loss_weight", "budget", "budget_probability", "max_selection_prob", "max_epsilon", *LATER)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """For how long the server waits, and how many empty slots it bears. Nobody's contract depends on this.

    `keys` is a folder with NAME.pub for each client; with it a node must have proved the key of the name that it gives.
    `known_sizes` is a CSV file with the columns id and samples: the numbers of records that the operator knows of. With
    it a report with another number is refused. `records` is how many an average client holds; the noise weight "auto"
    follows from it.
    """

    clients: int
    store: str
    dataset: str = ""
    wait_seconds: float = 300.0
    elicit_seconds: float = 120.0
    offer_seconds: float = 120.0
    round_seconds: float = 600.0
    repeat_seconds: float = 60.0
    min_share: float = 0.5
    rebind: bool = False
    keys: str = ""
    known_sizes: str = ""
    records: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InputError(f"clients is {self.clients}; it must be at least 1")
        if not self.store:
            raise InputError("store is empty; it must name the folder of the server's own books")
        for name in _SECONDS:
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name):g}; it must be finite and above 0")
        whole_number("records", self.records, 0)
        if not 0 <= self.min_share <= 1:
            raise InputError(f"min_share is {self.min_share:g}; it must lie from 0 to 1")

    def sizes_by_name(self) -> dict[str, int] | None:
        """The numbers of records that the operator knows of, by client; None where no file says them."""
        if not self.known_sizes:
            return None
        try:
            rows = list(csv.DictReader(io.StringIO(Path(self.known_sizes).read_text(encoding="utf-8-sig"))))
            return {row["id"].strip(): int(row["samples"]) for row in rows}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
            raise InputError(
                f"known_sizes is {self.known_sizes!r}; it must be a CSV file with the columns id and samples ({error})"
            ) from error

    def public_keys(self) -> dict[str, str] | None:
        """The keys by client, one key for one name and one name for one key; None where none were given."""
        if not self.keys:
            return None
        keys = {path.stem: public_key_text(path.read_bytes()) for path in sorted(Path(self.keys).glob("*.pub"))}
        odd = [name for name, key in keys.items() if not key]
        if odd or not keys:
            what = f"{odd[0]}.pub is no public key" if odd else "it has no keys"
            raise InputError(f"keys is {self.keys!r}: {what}; it must be a folder with NAME.pub for each client")
        wrong = [name for name in keys if not is_name(name)]
        if wrong:
            raise InputError(f"keys is {self.keys!r}: {wrong[0]!r} is no name for a client; a name must have {ALLOWED}")
        owners: dict[str, str] = {}
        for name, key in keys.items():
            other = owners.setdefault(key, name)
            if other != name:
                raise InputError(
                    f"keys is {self.keys!r}: {other}.pub and {name}.pub are the same key; each client must have its own"
                )
        return keys


def from_run_config(
    config: Mapping[str, Any], parameters: Callable[[str], int] | None = None
) -> tuple[CampaignRules, ServerOptions]:
    """Rules and options from one flat configuration, as Flower's are: names have dashes, and nothing is None.

    `parameters` says how many a model by its name has, which the noise weight "auto" needs.
    """
    options = tuple(field.name for field in fields(ServerOptions))
    names = {name.replace("_", "-"): name for name in (*SETTINGS, *options)}
    unknown = sorted(str(name) for name in config if name not in names)
    if unknown:
        raise InputError(f"unknown run-config: {', '.join(unknown)}")
    given = {names[name]: value for name, value in config.items()}
    given = {name: None if name in OPTIONAL and value in ("", 0) else value for name, value in given.items()}
    waits = given.get("noise_weight") == AUTO
    if waits:
        del given["noise_weight"]
    rules = CampaignRules.from_dict({name: value for name, value in given.items() if name in SETTINGS})
    rules.check_prior()
    try:
        conduct = ServerOptions(**{name: value for name, value in given.items() if name in options})
    except TypeError as error:
        raise InputError(f"run-config: {error}") from error
    return (_weighed(rules, conduct, parameters) if waits else rules), conduct


def _weighed(rules: CampaignRules, conduct: ServerOptions, parameters: Callable[[str], int] | None) -> CampaignRules:
    """The rules with the noise weight that follows from the model and the data of an average client."""
    if not conduct.records or parameters is None:
        raise InputError(
            "noise_weight is 'auto'; it needs records, the number that an average client holds, or a number"
        )
    weight = NoiseWeight.of(rules.training, num_parameters=parameters(rules.model), samples=conduct.records)
    economy = replace(rules.rules, noise_weight=weight.value)
    if economy.heterogeneity is not None:
        economy = replace(economy, heterogeneity=with_records(economy.heterogeneity, conduct.records))
    return replace(rules, rules=economy)
