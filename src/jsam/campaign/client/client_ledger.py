"""The client's own books: what it agreed to, what it has spent, and whether it may answer once more.

The order of one answer, each step stored for good before the next begins; on the right, how a folder stores it:

    1. the release is recorded as spent, and with it the model that it is for (one entry of the journal)
    2. the reply is computed, with fresh noise                                (memory)
    3. the reply is stored, whole                                             (replies/t.bin, by rename)
    4. its digest is stored                                                   (an entry of the journal)
    5. the reply is returned, and may leave

The journal is one chain over all campaigns (`jsam.campaign.client.client_journal`). Before anything is done with the
books it is read, checked, and held against all files: books that were cut, edited, or mixed up release nothing. Another
storage (`jsam.campaign.client.client_storage`) may store 3 and 4 in one step.

Claim: whatever the moments at which the process is killed and however often a round is asked for, at most one noisy
value of that round ever leaves, and what has left never exceeds what is recorded. Proof. A value leaves at 5 only, so
1 to 4 were done for it. A call that finds the digest returns the stored bytes or nothing. A call that finds the reply
without its digest returns those same bytes. A call that finds the record alone computes afresh: no digest is there, so
no earlier call of this round reached 5, and the earlier values of the noise died with their processes. Calls do not
overlap: a lock on the folder is held throughout, and the system frees it when its holder dies. Finally 1 precedes 2 and
is never undone, so every value that left is recorded; a round that is recorded and never answered counts as spent. ∎
The claim needs the folder to be the client's own and never to be set back whole, say to a copy from last week: of that
nothing in the folder can tell.

A round asked for again with another model is refused, answered before or not. If it was answered the stored reply would
give nothing new, but the asker would take it for the gradient of a model that it is not of. If a kill came between 1
and 4, to compute afresh for the other model would cost no privacy by the numbers that leave: still one value a round
leaves, with the noise that was recorded, and the accounting holds for a server that picks each model after seeing all
earlier values. But whether a computation ends, is killed for its memory or takes long may depend on the records, and
comes without noise. Were the model free until the first answer, a server could try one model after another on a round
that it never lets end, and watch. Bound before anything is computed, a round shows at most one model to the records.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jsam.campaign.announcement import Announcement
from jsam.campaign.client.acceptable_rules import judge_rules, prior_support
from jsam.campaign.client.client_folder import ClientFolder
from jsam.campaign.client.client_storage import (
    RULES,
    CampaignRecords,
    ClientStorage,
    DamagedError,
    OpenBooks,
    translated,
)
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.campaign.round_request import AGREED, RoundRequest
from jsam.campaign.sandboxed_check import check_loss_weight_apart
from jsam.campaign.statement import Statement, Total, total
from jsam.campaign.terms import Terms
from jsam.campaign.verification import Check, Status, verify
from jsam.errors import InputError
from jsam.privacy import Release

Compute = Callable[[Release], bytes]

# The first offer and the one after a re-plan. With more of them a server could find out a policy's limits by halving.
OFFERS_JUDGED = 2
WAIT = 300.0  # seconds in which another process of this client should have answered
_MODEL_DIGEST = re.compile(r"[0-9a-f]{64}")


class ClientLedger:
    """All campaigns of one client. Any number of processes may share its books, one at a time.

    Everything raised on purpose is `Refused`, whose text may be sent; details stay in its `__cause__`.
    """

    def __init__(
        self, storage: ClientStorage | Path | str, policy: Policy | None = None, *, wait: float = WAIT
    ) -> None:
        """`storage` says where the books are; a path is that of a folder on the client's own disk.

        `wait`: for how many seconds to queue behind another process that is answering.
        """
        self.storage: ClientStorage = ClientFolder(storage) if isinstance(storage, Path | str) else storage
        self.policy = policy or Policy()
        self.wait = wait

    @property
    def paused(self) -> bool:
        """Whether the client's owner wants no request answered for now."""
        return self.storage.paused

    def pause(self, on: bool = True) -> None:
        """From now on answer no request, or answer again."""
        self.storage.pause(on)

    def check(self) -> None:
        """`DamagedError`, which names the place, if the books are not as they were left. Not for what leaves."""
        self.storage.reading(thorough=True)

    def hear(
        self,
        published: str,
        *,
        sensitivity: float | None = None,
        samples: int | None = None,
        knows_model: Callable[[str], bool] | None = None,
    ) -> None:
        """Keep what a server published (JSON), before reporting under it: the first word of a campaign stands.

        Rules under which the client would accept nothing are refused: then it must not report. A no stays one.
        """
        announcement = Announcement.from_json(published)
        with self._writing() as books, translated():
            if self._heard(announcement, books):
                return
        # It may take a while, in which others may use the books.
        support = prior_support(announcement.rules, knows_model)
        with self._writing() as books, translated():
            if self._heard(announcement, books):
                return
            refusal = judge_rules(announcement.rules, support, self.policy, sensitivity=sensitivity, samples=samples)
            # One entry, also for a no: each look at the policy counts as one campaign.
            books.campaign(announcement.campaign).keep_published(announcement.text, refusal)
        if refusal is not None:
            raise refusal

    def accept(
        self,
        terms: Terms,
        *,
        sensitivity: float | None = None,
        samples: int | None = None,
        published: bool = False,
    ) -> None:
        """Agree to an offer, after checking it and the policy. The same offer again changes nothing.

        Another offer for the same campaign (a re-plan) takes its place as long as nothing was released under it. It
        must follow the rules that were published; with `published` it must be a campaign whose rules were heard.
        At most `OFFERS_JUDGED` offers of a campaign get as far as the policy; one that was declined stays declined.
        """
        with self._writing() as books, translated():
            store = books.campaign(terms.campaign)
            _still_open(store)
            if store.known:
                if store.terms == terms:
                    return
                if store.releases():
                    raise Refused(Reason.CONTRACT_IN_USE, "this campaign has releases under the terms accepted before")
            _follow_the_rules(terms, store.published, needed=published)
            # What can go wrong here tells a server only what it knows: its own offer, and what was reported to it.
            _hold(verify(terms, sensitivity, samples))
            self._judge_once(terms, store, books)
            store.accept(terms)

    def answer(self, request: RoundRequest, compute: Compute, *, model: str) -> bytes:
        """The reply to one round: computed once in the campaign's life, repeated byte for byte ever after.

        `model` is the SHA-256 of the parameters that came with the request. `compute` gets the release that was
        recorded and must add noise of its `noise_std`, fresh from the system's entropy. If it fails the round stays
        recorded as spent and may be tried again, with the same model.
        """
        if not _MODEL_DIGEST.fullmatch(model):
            raise InputError(f"model is {model!r}; it must be a SHA-256 of 64 hexadecimal digits")
        with self._writing() as books:
            with translated():
                store = _known(books, request.campaign)
                release = self._admitted(request, store, model, books)
                try:
                    reply = store.reply(request.round)
                except DamagedError as error:
                    text = "the reply to this round was given and is not stored any more"
                    raise Refused(Reason.REPLY_LOST, text) from error
            if reply is None:
                # An error of the computation is none of the books: it passes through as it is.
                reply = compute(release)
            with translated():
                store.keep(request.round, reply)
            return reply

    def close(self, campaign: str) -> None:
        """End a campaign: nothing more is released, only what was spent counts towards the total from now on.

        So too one that was heard of and has no terms yet: an offer that was held up on its way must not bind.
        """
        with self._writing() as books, translated():
            store = books.campaign(campaign)
            if store.published is None:
                store = _known(books, campaign)
            store.close()

    def campaigns(self) -> tuple[str, ...]:
        """The names of all campaigns that were heard of or accepted."""
        with translated():
            names = (_name(store) for store in self.storage.reading().campaigns())
            return tuple(name for name in names if name is not None)

    def terms(self, campaign: str) -> Terms:
        """What was accepted."""
        with translated():
            return _known(self.storage.reading(), campaign).terms

    def statement(self, *, without: str | None = None) -> tuple[Statement, ...]:
        """One entry a campaign, from the books alone; may be asked while another process answers."""
        with translated():
            return _statements(self.storage.reading(), without)

    def committed(self, *, without: str | None = None) -> Total:
        """What campaigns together may come to spend, or did spend if they are over."""
        return total(entry.committed for entry in self.statement(without=without))

    def spent(self) -> Total:
        """What all campaigns together have spent so far."""
        return total(entry.spent for entry in self.statement())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[OpenBooks]:
        """The books, while no other process has them. Errors of the books become refusals, all others pass."""
        with contextlib.ExitStack() as stack:
            with translated():
                books = stack.enter_context(self.storage.writing(self.wait))
            yield books

    def _heard(self, announcement: Announcement, books: OpenBooks) -> bool:
        """Whether these very rules were heard before and not refused; `Refused` if nothing may be heard."""
        store = books.campaign(announcement.campaign)
        _still_open(store)
        earlier = store.published
        if earlier is None:
            if len(books.campaigns()) >= self.policy.max_campaigns:
                raise Refused(Reason.TOO_MANY_CAMPAIGNS, "this client hears of no more campaigns")
            return False
        if Announcement.from_json(earlier).values != announcement.values:
            raise Refused(Reason.RULES_CHANGED, "other rules were published for this campaign before")
        said = store.offers().get(RULES)
        if said is not None:
            raise said
        return True

    def _judge_once(self, terms: Terms, store: CampaignRecords, books: OpenBooks) -> None:
        """Judge an offer, or say again what was said to it before."""
        mark = hashlib.sha256(terms.to_json().encode()).hexdigest()
        judged = {other: said for other, said in store.offers().items() if other != RULES}
        earlier = judged.get(mark)
        if earlier is not None:
            raise earlier
        if mark not in judged:
            if len(judged) >= OFFERS_JUDGED:
                raise Refused(Reason.TOO_MANY_OFFERS, "as many offers of this campaign were judged as it has plans")
            # Counted before it is judged, or a kill at the right moment would give one look more.
            store.note_offer(mark, None)
        try:
            self._judge(terms, books)
        except Refused as refusal:
            if refusal.code is Reason.LEDGER_FAILED:
                raise
            if store.known and refusal.code is Reason.DECLINED:
                # The earlier offer is off the table: no ε need be held ready for it.
                store.close()
            store.note_offer(mark, refusal)
            raise

    def _judge(self, terms: Terms, books: OpenBooks) -> None:
        if self.policy.check_loss_weight:
            check = check_loss_weight_apart(terms)
            if check.status is Status.NOT_CHECKED:
                raise Refused(Reason.INVALID_TERMS, "the loss weight of this budget cannot be checked here")
            _hold((check,))
        others = total(entry.committed for entry in _statements(books, terms.campaign))
        objections = self.policy.judge(terms, others)
        if objections:
            names = ", ".join(objection.code for objection in objections)
            raise Refused(Reason.DECLINED, f"against the client's policy: {names}")

    def _admitted(self, request: RoundRequest, store: CampaignRecords, model: str, books: OpenBooks) -> Release:
        """The release that is asked for, recorded; or a refusal, and the books unchanged."""
        terms, releases = store.terms, store.releases()
        release = _agreed_release(request, terms)
        _still_open(store)
        recorded = next((entry for entry in releases if entry.round == request.round), None)
        if recorded is None:
            self._afford(release, terms, releases, books)
            self._make_space(store, books)
        elif recorded != release:
            raise Refused(Reason.REPEAT_DIFFERS, "this round was asked for before, with another multiplicity")
        bound = store.model(request.round)
        if bound is not None and bound != model:
            raise Refused(Reason.OTHER_MODEL, "this round was asked for before, with other parameters")
        if recorded is None:
            store.record(release, model)
        elif bound is None:
            raise DamagedError(f"{store.where}: round {request.round} is recorded and its model is not")
        return release

    def _afford(self, release: Release, terms: Terms, releases: Sequence[Release], books: OpenBooks) -> None:
        if any(entry.round > release.round for entry in releases):
            raise Refused(Reason.OUT_OF_ORDER, "a later round was released already")
        draws = sum(entry.multiplicity for entry in releases) + release.multiplicity
        if draws > terms.participations:
            raise Refused(Reason.TOO_MANY_DRAWS, "the draws that were agreed on are used up")
        own = Statement.of(terms, [*releases, release], 0, closed=False)
        if own.epsilon_spent > terms.epsilon:
            raise Refused(Reason.EPSILON_EXHAUSTED, "this release would spend more ε than was bought")
        # A policy that became stricter after the terms were accepted holds all the same.
        others = total(entry.spent for entry in _statements(books, terms.campaign))
        if not self.policy.allows(total([others, own.spent])):
            raise Refused(Reason.POLICY_TOTAL, "this release would pass the client's total over all campaigns")

    def _make_space(self, store: CampaignRecords, books: OpenBooks) -> None:
        """Make room for a reply before its release is recorded, or its ε would be spent for nothing."""
        stored = sum(campaign.replies_size() for campaign in books.campaigns() if campaign.known)
        if stored < self.policy.max_stored_bytes:
            return
        own = store.replies_size()
        # An honest server asks for no round again once it has asked for the next.
        store.drop_replies(max(self.policy.max_stored_bytes - (stored - own) - 1, 0))
        if stored - own + store.replies_size() >= self.policy.max_stored_bytes:
            raise Refused(Reason.NO_SPACE, "the client keeps no more replies")


def _still_open(store: CampaignRecords) -> None:
    if store.closed:
        raise Refused(Reason.CAMPAIGN_CLOSED, "this campaign is over for this client")


def _hold(checks: tuple[Check, ...]) -> None:
    violated = [check.name for check in checks if check.status is Status.VIOLATED]
    if violated:
        raise Refused(Reason.INVALID_TERMS, f"the offer does not hold: {', '.join(violated)}")


def _follow_the_rules(terms: Terms, published: str | None, *, needed: bool) -> None:
    if published is None:
        if needed:
            raise Refused(Reason.UNKNOWN_CAMPAIGN, "no rules were published for this campaign before the report")
        return
    odd = Announcement.from_json(published).differences(terms)
    if odd:
        raise Refused(Reason.RULES_CHANGED, f"the offer is not by the published rules: {', '.join(odd)}")


def _agreed_release(request: RoundRequest, terms: Terms) -> Release:
    """The release that is asked for, if it is one of the terms."""
    if request.terms_hash != terms.hash:
        raise Refused(Reason.OTHER_CONTRACT, "the request names other terms than those accepted")
    for name in AGREED:
        if getattr(request, name) != getattr(terms, name):
            raise Refused(Reason.OTHER_SETTINGS, f"{name} differs from the accepted terms")
    if request.round >= terms.public.rounds:
        raise Refused(Reason.ROUND_OUT_OF_RANGE, "the campaign has fewer rounds")
    if request.multiplicity > terms.public.per_round:
        raise Refused(Reason.TOO_MANY_DRAWS, "a round has fewer draws than that")
    return terms.release(request.round, request.multiplicity)


def _known(books: OpenBooks, campaign: str) -> CampaignRecords:
    store = books.campaign(campaign)
    if not store.known:
        raise Refused(Reason.UNKNOWN_CAMPAIGN, "no terms were accepted for this campaign")
    return store


def _statements(books: OpenBooks, without: str | None = None) -> tuple[Statement, ...]:
    entries = (_statement(store) for store in books.campaigns() if store.known)
    return tuple(entry for entry in entries if entry.campaign != without)


def _statement(store: CampaignRecords) -> Statement:
    releases = store.releases()
    draws = sum(release.multiplicity for release in releases if store.answered(release.round))
    return Statement.of(store.terms, releases, draws, closed=store.closed)


def _name(store: CampaignRecords) -> str | None:
    """The name of a campaign, as its server gave it; None if all that is known of it is an offer that was declined."""
    if store.known:
        return store.terms.campaign
    return None if store.published is None else Announcement.from_json(store.published).campaign
