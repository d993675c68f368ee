"""What a server published before the client reported, kept by the client to hold the later offer against.

The promise that no client gains by lying is about rules that were fixed before the reports. A server that hears the
reports first and then takes another prior, another mechanism or another loss weight keeps no promise at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.terms import PublicInputs, Terms

_LONGEST, _LONGEST_NAME = 100_000, 200
_OF_TERMS = ("campaign", "delta", "clip_norm", "adjacency")
# N is not known before the reports, so neither is η(N) where a budget determines it.
_OF_INPUTS = tuple(field.name for field in fields(PublicInputs) if field.name != "num_clients")
# What is left out could be filled in after the reports.
NEEDED = tuple(name for name in (*_OF_TERMS, *_OF_INPUTS) if name not in ("budget_seed", "precision"))


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Published settings by name; what the terms do not speak of is kept and not judged."""

    text: str
    values: Mapping[str, object]

    @classmethod
    def from_json(cls, text: str) -> Announcement:
        """A JSON object of plain values; anything else is refused."""
        try:
            values = json.loads(text) if len(text) <= _LONGEST else None
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or any(name not in values for name in NEEDED):
            raise Refused(Reason.MALFORMED, "what was published does not say the rules")
        name = values["campaign"]
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise Refused(Reason.MALFORMED, "what was published must name the campaign in printable characters")
        if (values["loss_weight"] is None) == (values["budget"] is None):
            raise Refused(Reason.MALFORMED, "what was published must have one loss weight or budget")
        if values["budget"] is not None and type(values.get("seed")) is not int:
            # η(N) is found on markets drawn with it: chosen later, it would leave room to move η.
            raise Refused(Reason.MALFORMED, "what was published has a budget and no seed")
        return cls(text=text, values=values)

    @property
    def campaign(self) -> str:
        return str(self.values["campaign"])

    def differences(self, terms: Terms) -> tuple[str, ...]:
        """The names of settings in which an offer is not what was published."""
        odd = [name for name in _OF_TERMS if self._differs(name, getattr(terms, name))]
        odd += [name for name in _OF_INPUTS if self._differs(name, getattr(terms.public, name))]
        # The draws from which a budget's η(N) is found follow from the campaign's seed.
        if self.values.get("seed", terms.public.budget_seed) != terms.public.budget_seed:
            odd.append("budget_seed")
        return tuple(odd)

    def _differs(self, name: str, offered: object) -> bool:
        if name not in self.values or (name == "loss_weight" and self.values["budget"] is not None):
            return False
        published = self.values[name]
        # 1 and True are equal in Python.
        return isinstance(published, bool) or published != offered
