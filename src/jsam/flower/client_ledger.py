"""The client's own books: what it agreed to, what it has spent, and whether it may answer once more.

The order of one answer, each step on disk before the next begins:

    0. the round is bound to the model it came with (replies/t.model, by rename)
    1. the release is recorded as spent             (releases.jsonl)
    2. the reply is computed, with fresh noise      (memory)
    3. the reply is stored, whole                   (replies/t.bin, by rename)
    4. its digest is stored                         (replies/t.sha256, by rename)
    5. the reply is returned, and may leave

Claim: whatever the moments at which the process is killed and however often a round is asked for, at most one noisy
value of that round ever leaves, and what has left never exceeds what is recorded. Proof. A value leaves at 5 only, so
1 to 4 were done for it. A call that finds the digest returns the stored bytes or nothing. A call that finds the reply
without its digest returns those same bytes. A call that finds the record alone computes afresh: no digest is there, so
no earlier call of this round reached 5, and the earlier values of the noise died with their processes. Calls do not
overlap: a lock on the folder is held throughout, and the system frees it when its holder dies. Finally 1 precedes 2 and
is never undone, so every value that left is recorded; a round that is recorded and never answered counts as spent. ∎
The claim needs the folder to be the client's own and never to be set back, say to a copy from last week.

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
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jsam.errors import InputError, JsamError
from jsam.flower.announcement import Announcement
from jsam.flower.apart import check_loss_weight_apart
from jsam.flower.client_store import CampaignStore, DamagedError
from jsam.flower.policy import Policy
from jsam.flower.refusal import Reason, Refused
from jsam.flower.requests import Request
from jsam.flower.statement import Statement, Total, total
from jsam.flower.terms import Terms
from jsam.flower.verification import Check, Status, verify
from jsam.privacy import Release, spent_epsilons
from jsam.privacy.files import PRIVATE_FILE, make_folder

try:
    import fcntl
except ImportError:  # a system without POSIX locks: two calls at once are then not kept apart
    fcntl = None  # type: ignore[assignment]

Compute = Callable[[Release], bytes]

# The first offer and the one after a re-plan. With more of them a server could find out a policy's limits by halving.
OFFERS_JUDGED = 2
_POLL = 0.02
_MODEL_DIGEST = re.compile(r"[0-9a-f]{64}")


class ClientLedger:
    """All campaigns of one client, in a folder on its own disk. Any number of processes may share it, one at a time.

    Everything raised on purpose is `Refused`, whose text may be sent; details stay in its `__cause__`.
    """

    def __init__(self, folder: Path | str, policy: Policy | None = None, *, wait: float = 300.0) -> None:
        """`wait`: for how many seconds to queue behind another process that is answering."""
        self.folder = Path(folder)
        self.policy = policy or Policy()
        self.wait = wait
        self._campaigns = self.folder / "campaigns"

    def hear(self, published: str) -> None:
        """Keep what a server published (JSON), before reporting under it: the first word of a campaign stands."""
        announcement = Announcement.from_json(published)
        with self._locked(), _translated():
            store = CampaignStore.of(self._campaigns, announcement.campaign)
            earlier = store.published
            if earlier is None:
                if CampaignStore.heard_in(self._campaigns) >= self.policy.max_campaigns:
                    raise Refused(Reason.TOO_MANY_CAMPAIGNS, "this client hears of no more campaigns")
                store.keep_published(announcement.text)
            elif Announcement.from_json(earlier).values != announcement.values:
                raise Refused(Reason.RULES_CHANGED, "other rules were published for this campaign before")

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
        with self._locked(), _translated():
            store = CampaignStore.of(self._campaigns, terms.campaign)
            _still_open(store)
            if store.known:
                if store.terms == terms:
                    return
                if store.releases():
                    raise Refused(Reason.CONTRACT_IN_USE, "this campaign has releases under the terms accepted before")
            _follow_the_rules(terms, store.published, needed=published)
            # What can go wrong here tells a server only what it knows: its own offer, and what was reported to it.
            _hold(verify(terms, sensitivity, samples).violations)
            self._judge_once(terms, store)
            store.accept(terms)

    def answer(self, request: Request, compute: Compute, *, model: str) -> bytes:
        """The reply to one round: computed once in the campaign's life, repeated byte for byte ever after.

        `model` is the SHA-256 of the parameters that came with the request. `compute` gets the release that was
        recorded and must add noise of its `noise_std`, fresh from the system's entropy. If it fails the round stays
        recorded as spent and may be tried again, with the same model.
        """
        if not _MODEL_DIGEST.fullmatch(model):
            raise InputError(f"model is {model!r}; it must be a SHA-256 of 64 hexadecimal digits")
        with self._locked():
            with _translated():
                store = self._known(request.campaign)
                release = self._admitted(request, store, model)
                reply = self._stored_reply(store, request.round)
            if reply is None:
                # An error of the computation is none of the books: it passes through as it is.
                reply = compute(release)
            with _translated():
                store.keep(request.round, reply)
            return reply

    def close(self, campaign: str) -> None:
        """End a campaign: nothing more is released, only what was spent counts towards the total from now on.

        So too one that was heard of and has no terms yet: an offer that was held up on its way must not bind.
        """
        with self._locked(), _translated():
            store = CampaignStore.of(self._campaigns, campaign)
            if store.published is None:
                store = self._known(campaign)
            store.close()

    def terms(self, campaign: str) -> Terms:
        """What was accepted."""
        with _translated():
            return self._known(campaign).terms

    def statement(self) -> tuple[Statement, ...]:
        """One entry a campaign, from the books alone; may be asked while another process answers."""
        with _translated():
            return tuple(_statement(store) for store in CampaignStore.all_in(self._campaigns))

    def committed(self, *, without: str | None = None) -> Total:
        """(Σ ε, Σ δ) that campaigns may come to spend, or did spend if they are over."""
        return total(entry.committed for entry in self.statement() if entry.campaign != without)

    def spent(self, *, without: str | None = None) -> Total:
        """(Σ ε, Σ δ) spent so far in all campaigns (basic composition)."""
        return total(entry.spent for entry in self.statement() if entry.campaign != without)

    def _known(self, campaign: str) -> CampaignStore:
        store = CampaignStore.of(self._campaigns, campaign)
        if not store.known:
            raise Refused(Reason.UNKNOWN_CAMPAIGN, "no terms were accepted for this campaign")
        return store

    def _judge_once(self, terms: Terms, store: CampaignStore) -> None:
        """Judge an offer, or say again what was said to it before."""
        mark, judged = hashlib.sha256(terms.to_json().encode()).hexdigest(), store.offers()
        earlier = judged.get(mark)
        if earlier is not None:
            raise earlier
        if mark not in judged:
            if len(judged) >= OFFERS_JUDGED:
                raise Refused(Reason.TOO_MANY_OFFERS, "as many offers of this campaign were judged as it has plans")
            # Counted before it is judged, or a kill at the right moment would give one look more.
            store.note_offer(mark, None)
        try:
            self._judge(terms)
        except Refused as refusal:
            if refusal.code is Reason.LEDGER_FAILED:
                raise
            if store.known and refusal.code is Reason.DECLINED:
                # The earlier offer is off the table: no ε need be held ready for it.
                store.close()
            store.note_offer(mark, refusal)
            raise

    def _judge(self, terms: Terms) -> None:
        if self.policy.check_loss_weight:
            found = check_loss_weight_apart(terms)
            if found.status is Status.NOT_CHECKED:
                raise Refused(Reason.INVALID_TERMS, "the loss weight of this budget cannot be checked here")
            _hold(() if found.status is Status.PASSED else (found,))
        objections = self.policy.judge(terms, self.committed(without=terms.campaign))
        if objections:
            names = ", ".join(objection.code for objection in objections)
            raise Refused(Reason.DECLINED, f"against the client's policy: {names}")

    def _admitted(self, request: Request, store: CampaignStore, model: str) -> Release:
        """The release that is asked for, recorded; or a refusal, and the books unchanged."""
        terms, releases = store.terms, store.releases()
        release = _agreed_release(request, terms)
        _still_open(store)
        recorded = next((entry for entry in releases if entry.round == request.round), None)
        if recorded is None:
            self._afford(release, terms, releases)
        elif recorded != release:
            raise Refused(Reason.REPEAT_DIFFERS, "this round was asked for before, with another multiplicity")
        bound = store.model(request.round)
        if bound is None and recorded is None:
            store.bind(request.round, model)
        elif bound is None:
            raise DamagedError(f"{store.folder}: round {request.round} is recorded and its model is not")
        elif bound != model:
            raise Refused(Reason.OTHER_MODEL, "this round was asked for before, with other parameters")
        if recorded is None:
            store.record(release)
        return release

    def _afford(self, release: Release, terms: Terms, releases: tuple[Release, ...]) -> None:
        if any(entry.round > release.round for entry in releases):
            raise Refused(Reason.OUT_OF_ORDER, "a later round was released already")
        draws = sum(entry.multiplicity for entry in releases) + release.multiplicity
        if draws > terms.participations:
            raise Refused(Reason.TOO_MANY_DRAWS, "the draws that were agreed on are used up")
        spent = spent_epsilons([*releases, release], terms.delta)[terms.client]
        if spent > terms.epsilon:
            raise Refused(Reason.EPSILON_EXHAUSTED, "this release would spend more ε than was bought")
        # A policy that became stricter after the terms were accepted holds all the same.
        others = self.spent(without=terms.campaign)
        within = self.policy.allows_epsilon(others.epsilon + spent)
        if not (within and self.policy.allows_delta(others.delta + terms.delta, terms.samples)):
            raise Refused(Reason.POLICY_TOTAL, "this release would pass the client's total over all campaigns")

    def _stored_reply(self, store: CampaignStore, round: int) -> bytes | None:
        try:
            return store.reply(round)
        except DamagedError as error:
            raise Refused(Reason.REPLY_LOST, "the reply to this round was given and is not stored any more") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _translated():
            # Not for other users of the machine: the books tell what this client sells its privacy for.
            make_folder(self.folder)
            make_folder(self._campaigns)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            with _translated():
                self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        deadline = time.monotonic() + self.wait
        while fcntl is not None:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Refused(Reason.BUSY, "another process of this client is still answering") from None
                time.sleep(_POLL)
        return None


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Errors of the books name files; what leaves must not."""
    try:
        yield
    except Refused:
        raise
    except (JsamError, OSError) as error:
        raise Refused(
            Reason.LEDGER_FAILED, "the client's books cannot be read or written; nothing is released"
        ) from error


def _still_open(store: CampaignStore) -> None:
    if store.closed:
        raise Refused(Reason.CAMPAIGN_CLOSED, "this campaign is over for this client")


def _hold(violations: tuple[Check, ...]) -> None:
    if violations:
        names = ", ".join(check.name for check in violations)
        raise Refused(Reason.INVALID_TERMS, f"the offer does not hold: {names}")


def _follow_the_rules(terms: Terms, published: str | None, *, needed: bool) -> None:
    if published is None:
        if needed:
            raise Refused(Reason.UNKNOWN_CAMPAIGN, "no rules were published for this campaign before the report")
        return
    odd = Announcement.from_json(published).differences(terms)
    if odd:
        raise Refused(Reason.RULES_CHANGED, f"the offer is not by the published rules: {', '.join(odd)}")


def _agreed_release(request: Request, terms: Terms) -> Release:
    """The release that is asked for, if it is one of the terms."""
    if request.terms_hash != terms.hash:
        raise Refused(Reason.OTHER_CONTRACT, "the request names other terms than those accepted")
    for name in ("clip_norm", "noise_std", "samples", "delta", "adjacency"):
        if getattr(request, name) != getattr(terms, name):
            raise Refused(Reason.OTHER_SETTINGS, f"{name} differs from the accepted terms")
    if request.round >= terms.public.rounds:
        raise Refused(Reason.ROUND_OUT_OF_RANGE, "the campaign has fewer rounds")
    if request.multiplicity > terms.public.per_round:
        raise Refused(Reason.TOO_MANY_DRAWS, "a round has fewer draws than that")
    return terms.release(request.round, request.multiplicity)


def _statement(store: CampaignStore) -> Statement:
    terms, releases = store.terms, store.releases()
    return Statement.of(terms, releases, store.answered_draws(releases), closed=store.closed)
