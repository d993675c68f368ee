"""The client's own books: what it agreed to, what it has spent, and whether it may answer once more.

The order of one answer, each step on disk before the next begins:

    1. the release is recorded as spent            (releases.jsonl)
    2. the reply is computed, with fresh noise     (memory)
    3. the reply is stored, whole                  (replies/t.bin, by rename)
    4. its digest is stored                        (replies/t.sha256, by rename)
    5. the reply is returned, and may leave

Claim: whatever the moments at which the process is killed and however often a round is asked for, at most one noisy
value of that round ever leaves, and what has left never exceeds what is recorded. Proof. A value leaves at 5 only, so
1 to 4 were done for it. A call that finds the digest returns the stored bytes or nothing. A call that finds the reply
without its digest returns those same bytes. A call that finds the record alone computes afresh: no digest is there, so
no earlier call of this round reached 5, and the earlier values of the noise died with their processes. Calls do not
overlap: a lock on the folder is held throughout, and the system frees it when its holder dies. Finally 1 precedes 2 and
is never undone, so every value that left is recorded; a round that is recorded and never answered counts as spent. ∎
The claim needs the folder to be the client's own and never to be set back, say to a copy from last week.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jsam.errors import JsamError
from jsam.flower.announcement import Announcement
from jsam.flower.client_store import CampaignStore, DamagedError
from jsam.flower.policy import Policy
from jsam.flower.refusal import Reason, Refused
from jsam.flower.requests import Request
from jsam.flower.statement import Statement
from jsam.flower.terms import Terms
from jsam.flower.verification import verify
from jsam.privacy import Release, spent_epsilons

try:
    import fcntl
except ImportError:  # a system without POSIX locks: two calls at once are then not kept apart
    fcntl = None  # type: ignore[assignment]

Compute = Callable[[Release], bytes]

_POLL = 0.02


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
        """
        with self._locked(), _translated():
            store = CampaignStore.of(self._campaigns, terms.campaign)
            if store.known:
                if store.closed:
                    raise Refused(Reason.CAMPAIGN_CLOSED, "this campaign is over for this client")
                if store.terms == terms:
                    return
                if store.releases():
                    raise Refused(Reason.CONTRACT_IN_USE, "this campaign has releases under the terms accepted before")
            _follow_the_rules(terms, store.published, needed=published)
            try:
                self._check(terms, sensitivity, samples)
            except Refused as refusal:
                if store.known and refusal.code is Reason.DECLINED:
                    # The earlier offer is off the table: no ε need be held ready for it.
                    store.close()
                raise
            store.accept(terms)

    def answer(self, request: Request, compute: Compute) -> bytes:
        """The reply to one round: computed once in the campaign's life, repeated byte for byte ever after.

        `compute` gets the release that was recorded and must add noise of its `noise_std`, fresh from the system's
        entropy. If it fails the round stays recorded as spent and may be tried again.
        """
        with self._locked():
            with _translated():
                store = self._known(request.campaign)
                release = self._admitted(request, store)
                reply = self._stored_reply(store, request.round)
            if reply is None:
                # An error of the computation is none of the books: it passes through as it is.
                reply = compute(release)
            with _translated():
                store.keep(request.round, reply)
            return reply

    def close(self, campaign: str) -> None:
        """End a campaign: nothing more is released, only what was spent counts towards the total from now on."""
        with self._locked(), _translated():
            self._known(campaign).close()

    def terms(self, campaign: str) -> Terms:
        """What was accepted."""
        with _translated():
            return self._known(campaign).terms

    def statement(self) -> tuple[Statement, ...]:
        """One entry a campaign, from the books alone; may be asked while another process answers."""
        with _translated():
            return tuple(_statement(store) for store in CampaignStore.all_in(self._campaigns))

    def committed_epsilon(self, *, without: str | None = None) -> float:
        """Σ over campaigns of the ε that they may come to spend, or did spend if they are over."""
        entries = [entry for entry in self.statement() if entry.campaign != without]
        return sum(entry.epsilon_spent if entry.closed else entry.epsilon_at_stake for entry in entries)

    def spent_epsilon(self, *, without: str | None = None) -> float:
        """Σ over campaigns of the ε spent so far (basic composition)."""
        return sum(entry.epsilon_spent for entry in self.statement() if entry.campaign != without)

    def _known(self, campaign: str) -> CampaignStore:
        store = CampaignStore.of(self._campaigns, campaign)
        if not store.known:
            raise Refused(Reason.UNKNOWN_CAMPAIGN, "no terms were accepted for this campaign")
        return store

    def _check(self, terms: Terms, sensitivity: float | None, samples: int | None) -> None:
        violations = verify(terms, sensitivity, samples).violations
        if violations:
            names = ", ".join(check.name for check in violations)
            raise Refused(Reason.INVALID_TERMS, f"the offer does not hold: {names}")
        others = 0.0 if self.policy.total_epsilon is None else self.committed_epsilon(without=terms.campaign)
        objections = self.policy.judge(terms, others)
        if objections:
            names = ", ".join(objection.code for objection in objections)
            raise Refused(Reason.DECLINED, f"against the client's policy: {names}")

    def _admitted(self, request: Request, store: CampaignStore) -> Release:
        """The release that is asked for, recorded; or a refusal, and the books unchanged."""
        terms, releases = store.terms, store.releases()
        release = _agreed_release(request, terms)
        if store.closed:
            raise Refused(Reason.CAMPAIGN_CLOSED, "this campaign is over for this client")
        recorded = next((entry for entry in releases if entry.round == request.round), None)
        if recorded is None:
            self._afford(release, terms, releases)
            store.record(release)
        elif recorded != release:
            raise Refused(Reason.REPEAT_DIFFERS, "this round was asked for before, with another multiplicity")
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
        if self.policy.total_epsilon is not None and not self.policy.allows_total(
            self.spent_epsilon(without=terms.campaign) + spent
        ):
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
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._campaigns.mkdir(exist_ok=True)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
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
