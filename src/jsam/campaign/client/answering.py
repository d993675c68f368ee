"""The client's half: it reports, judges its offer, and releases noisy gradients within what it agreed to.

Everything that decides comes from this machine: the code that clips and adds noise, the data, the ledger, the policy. A
question can only ask. Whatever goes wrong, an answer carries a named reason and no data, no paths, no exception's text.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_ledger import WAIT
from jsam.campaign.client.client_lock import turn
from jsam.campaign.client.client_noise import fresh_noise
from jsam.campaign.client.reply_times import SHORTEST_STEP, ReplyTimes, Work
from jsam.campaign.messages import Answer, Kind, Question, Vector
from jsam.campaign.refusal import FAILED, Reason, Refused
from jsam.campaign.round_request import RoundRequest, model_digest
from jsam.campaign.terms import Terms
from jsam.errors import InputError
from jsam.privacy import Release

Noise = Callable[[float, int], NDArray[np.floating[Any]]]

logger = logging.getLogger(__name__)


class LocalTraining(Protocol):
    """What a client can compute: models by name, as they are installed on its machine, and clipped gradients."""

    def knows(self, model: str) -> bool:
        """Whether a model of this name is installed here."""

    def check_trains(self, model_name: str, inputs: NDArray[Any]) -> None:
        """Refuse, by `InputError`, a model that cannot be trained on such inputs; looks at no value of them."""

    def try_records(self, model: str, files: ClientFiles) -> None:
        """Find out which records the model does not take, and say in this machine's own log how many."""

    def fits(self, model_name: str, vector: Vector) -> bool:
        """Whether these can be the model's parameters."""

    def clipped_mean(self, model: str, vector: Vector, files: ClientFiles, clip_norm: float) -> NDArray[np.float64]:
        """The mean of all records' clipped gradients, before noise. It does not fail for any record's sake."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """Answers the questions of servers.

    `load` reads the client's own settings anew for each question. `noise(std, size)` is there for tests that switch it
    off, and nothing in a question can reach it. With `times` the answers to rounds leave at moments that tell nothing
    of the records; without, at once.
    """

    load: Callable[[], ClientFiles]
    training: LocalTraining
    noise: Noise = fresh_noise
    times: ReplyTimes | None = None

    def answer(self, question: Question) -> Answer:
        """The answer, one question after another, and that of a round once it may leave.

        A transport may hand over questions side by side. One that only queued for the books of another would say when
        that one's computation was over, and one that arrived in the middle of it could choose the moments at which it
        is told.
        """
        if self.times is None:
            return self._answer(question)
        try:
            folder = self.load().ledger
        except Exception:  # noqa: BLE001 - the same trouble meets the answer, which puts it into words
            return self._answer(question)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(turn(folder, WAIT))
            except Refused as refusal:
                return _refused(question, refusal)
            return self._on_time(question, self.times) if question.kind is Kind.ROUND else self._answer(question)

    def _on_time(self, question: Question, times: ReplyTimes) -> Answer:
        """The answer once it may leave. A refusal waits too: it may come from a failure."""
        since = times.now()
        try:
            step = self._step(question, times)
        except Exception:  # the same trouble meets the answer, which puts it into words; no record was touched yet
            logger.exception("the time of a reply cannot be found")
            step = SHORTEST_STEP
        try:
            return self._answer(question)
        finally:
            times.wait(since, step)

    def _step(self, question: Question, times: ReplyTimes) -> float:
        """Return the seconds between replies in the campaign of the request; the shortest if it has no terms."""
        files = self.load()
        if files.policy.reply_seconds is not None:
            return files.policy.reply_seconds
        try:
            model = files.books().terms(_text(question, "campaign")).public.model
        except Refused:
            return SHORTEST_STEP
        inputs, targets = files.records()
        work = Work(model=model, kind=inputs.dtype.str, shape=inputs.shape, labels=targets.shape)
        return times.step(files.ledger, work)

    def _answer(self, question: Question) -> Answer:
        answers = {
            Kind.HELLO: self._hello,
            Kind.ELICIT: self._report,
            Kind.OFFER: self._accept,
            Kind.CLOSE: self._close,
            Kind.ROUND: self._release,
        }
        try:
            files = self.load()
            if files.books().paused:
                raise Refused(Reason.PAUSED, "the client answers nothing for now")
            return answers[question.kind](question, files)
        except Refused as refusal:
            return _refused(question, refusal)
        except Exception:  # a transport would send the text of the exception to the server
            logger.exception("%s failed", question.kind)
            return Answer(values={"refused": FAILED, "text": "the client could not answer; its own log says why"})

    def _hello(self, question: Question, files: ClientFiles) -> Answer:
        return Answer(values={"client": files.name})

    def _report(self, question: Question, files: ClientFiles) -> Answer:
        samples = len(files.records()[1])
        # Kept before the report leaves: the offer will be held against it.
        files.books().hear(
            _text(question, "text"), sensitivity=files.sensitivity, samples=samples, knows_model=self.training.knows
        )
        return Answer(values={"client": files.name, "sensitivity": float(files.sensitivity), "samples": samples})

    def _accept(self, question: Question, files: ClientFiles) -> Answer:
        try:
            terms = Terms.from_json(_text(question, "terms"))
        except InputError as error:
            raise Refused(Reason.MALFORMED, "the offer holds no terms that can be read") from error
        if terms.client != files.name:
            raise Refused(Reason.OTHER_CONTRACT, "the offer is for another client")
        inputs, targets = files.records()
        model = terms.public.model
        # Without the model, or with one for other records, every draw would be spent for nothing.
        if not self.training.knows(model):
            raise Refused(Reason.INVALID_TERMS, "the model is not installed at this client")
        try:
            self.training.check_trains(model, inputs)
        except InputError as error:
            text = "the model cannot be trained on this client's kind of records"
            raise Refused(Reason.INVALID_TERMS, text) from error
        # To refuse the offer for a record that the model does not take would tell the server of single records.
        self.training.try_records(model, files)
        files.books().accept(terms, sensitivity=files.sensitivity, samples=len(targets), published=True)
        return Answer(values={"accepted": terms.hash})

    def _close(self, question: Question, files: ClientFiles) -> Answer:
        campaign = _text(question, "campaign")
        files.books().close(campaign)
        return Answer(values={"closed": campaign})

    def _release(self, question: Question, files: ClientFiles) -> Answer:
        asked = dict(question.values)
        ask_id = str(asked.pop("ask_id", ""))
        request = RoundRequest.from_dict(asked)
        books, parameters = files.books(), question.parameters
        model = books.terms(request.campaign).public.model
        if parameters is None:
            raise Refused(Reason.MALFORMED, "the request holds no parameters that can be read")
        if not self.training.fits(model, parameters):
            # Before the books: a round is bound to its model, and this can be none.
            raise Refused(Reason.MALFORMED, "the parameters are not of the model that was agreed on")

        def compute(release: Release) -> bytes:
            if len(files.records()[1]) != release.samples:
                raise Refused(Reason.OTHER_SETTINGS, "the number of records is not the one that was agreed on")
            mean = self.training.clipped_mean(model, parameters, files, release.clip_norm)
            return _stored(mean + self.noise(release.noise_std, len(mean)))

        reply = books.answer(request, compute, model=model_digest(parameters))
        release = np.load(io.BytesIO(reply), allow_pickle=False)
        return Answer(values={"ask_id": ask_id, "round": request.round}, release=release)


def _text(question: Question, name: str) -> str:
    value = question.values.get(name)
    if not isinstance(value, str):
        raise Refused(Reason.MALFORMED, f"the question has no {name!r}")
    return value


def _stored(release: NDArray[np.floating[Any]]) -> bytes:
    """Rounded to fp32, which is safe now that noise is in it."""
    buffer = io.BytesIO()
    np.save(buffer, release.astype(np.float32), allow_pickle=False)
    return buffer.getvalue()


def _refused(question: Question, refusal: Refused) -> Answer:
    logger.warning("refused %s (%s)", question.kind, refusal, exc_info=refusal.__cause__)
    return Answer(values={"refused": refusal.code.value, "text": refusal.text})
