"""What a server published before the client reported, kept by the client to hold the later offer against.

The promise that no client gains by lying is about rules that were fixed before the reports. A server that hears the
reports first and then takes another prior, another mechanism or another loss weight keeps no promise at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from jsam.campaign.campaign_rules import EQUAL, REPORTED, SETTINGS, CampaignRules
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.terms import Terms
from jsam.errors import InputError
from jsam.mechanism.rules import LATER

_LONGEST, _LONGEST_NAME = 100_000, 200
# What else is left out could be filled in after the reports.
NEEDED = tuple(name for name in SETTINGS if name not in ("seed", "momentum", "learning_rate_schedule", "sizes", *LATER))


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Published settings as text and by name; those that are no rules of a campaign are kept and not judged."""

    text: str
    values: Mapping[str, object]

    @classmethod
    def from_json(cls, text: str) -> Announcement:
        """A JSON object that says all rules; anything else is refused."""
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

    @cached_property
    def rules(self) -> CampaignRules:
        """The rules, read once; `Refused` if this client cannot read them."""
        try:
            return CampaignRules.from_dict({name: self.values[name] for name in SETTINGS if name in self.values})
        except InputError as error:
            raise Refused(Reason.RULES_UNREADABLE, "the published rules cannot be read here: settings") from error

    def differences(self, terms: Terms) -> tuple[str, ...]:
        """The names of settings in which an offer is not what was published."""
        rules, training, public = self.rules, self.rules.training, terms.public
        # N is not known before the reports, so neither is η(N) where a budget determines it.
        eta = public.loss_weight if rules.rules.loss_weight is None else rules.rules.loss_weight
        published, offered = rules.inputs(public.num_clients, eta).as_dict(), public.as_dict()
        for name in ("delta", "clip_norm", "adjacency"):
            published[name], offered[name] = getattr(training, name), getattr(terms, name)
        published |= {"campaign": rules.campaign, "precision": self.values.get("precision", public.precision)}
        if "seed" not in self.values:
            del published["budget_seed"]
        # Which sizes there are is not known before the reports, but whether they count is.
        published["sizes"], offered["sizes"] = rules.sizes, EQUAL if public.sizes is None else REPORTED
        offered["campaign"] = terms.campaign
        return tuple(name for name, value in published.items() if value != offered[name])
