"""The client's half: it reports, judges its offer, and releases noisy gradients within what it agreed to.

Everything that decides comes from this machine: the code that clips and adds noise, the data, the ledger, the policy. A
message can only ask. Whatever goes wrong, a reply carries a named reason and no data, no paths, no exception's text.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_ledger import WAIT, ClientLedger
from jsam.campaign.client.client_lock import turn
from jsam.campaign.client.client_noise import fresh_noise
from jsam.campaign.client.reply_times import SHORTEST_STEP, ReplyTimes, Work
from jsam.campaign.refusal import FAILED, Reason, Refused
from jsam.campaign.round_request import Request
from jsam.campaign.terms import Terms
from jsam.errors import InputError
from jsam.privacy import Release

Noise = Callable[[float, int], NDArray[np.floating[Any]]]
Answer = tuple[Mapping[str, Any], NDArray[np.float32] | None]

logger = logging.getLogger("flwr.jsam")


def client_app(noise: Noise = fresh_noise, times: ReplyTimes | None = None) -> ClientApp:
    """A ClientApp; `noise(std, size)` is there for tests that switch it off, and nothing in a message can reach it.

    With `times` the replies of training leave at moments that tell nothing of the records; without, at once.
    """
    app = ClientApp()

    def reply(message: Message, context: Context, compute: Callable[[], Answer], *, paced: bool = False) -> Message:
        # Made last of all: a message says to the microsecond when it was made.
        return Message(_in_turn(lambda: _answered(message, compute), message, context, times, paced), reply_to=message)

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return reply(message, context, lambda: _hello(context))

    @app.query("elicit")
    def elicit(message: Message, context: Context) -> Message:
        return reply(message, context, lambda: _elicit(message, context))

    @app.query("offer")
    def offer(message: Message, context: Context) -> Message:
        return reply(message, context, lambda: _offer(message, context))

    @app.query("close")
    def close(message: Message, context: Context) -> Message:
        return reply(message, context, lambda: _close(message, context))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply(message, context, lambda: _release(message, context, noise), paced=True)

    return app


def _client(context: Context) -> ClientFiles:
    """This machine's client, unless its owner has paused it."""
    files = ClientFiles.of_node(context.node_config)
    if _ledger(files).paused:
        raise Refused(Reason.PAUSED, "the client answers nothing for now")
    return files


def _hello(context: Context) -> Answer:
    return {"client": _client(context).name}, None


def _elicit(message: Message, context: Context) -> Answer:
    files = _client(context)
    samples = len(files.records()[1])
    # Kept before the report leaves: the offer will be held against it.
    text = str(_record(message, "published").get("text", ""))
    _ledger(files).hear(text, sensitivity=files.sensitivity, samples=samples, knows_model=_installed)
    return {"client": files.name, "sensitivity": float(files.sensitivity), "samples": samples}, None


def _installed(model: str) -> bool:
    from jsam.training.federated.installed_models import check_model

    try:
        check_model(model)
    except InputError:
        return False
    return True


def _offer(message: Message, context: Context) -> Answer:
    files = _client(context)
    try:
        terms = Terms.from_json(str(_record(message, "offer").get("terms", "")))
    except InputError as error:
        raise Refused(Reason.MALFORMED, "the offer holds no terms that can be read") from error
    if terms.client != files.name:
        raise Refused(Reason.OTHER_CONTRACT, "the offer is for another client")
    inputs, targets = files.records()
    _know(terms.public.model, inputs)
    _warn_of_records(files, terms.public.model)
    _ledger(files).accept(terms, sensitivity=files.sensitivity, samples=len(targets), published=True)
    return {"accepted": terms.hash}, None


def _know(model: str, inputs: NDArray[Any]) -> None:
    """Without the model, or with one for other records, every draw would be spent for nothing."""
    from jsam.training.federated.installed_models import check_model
    from jsam.training.federated.parameters import check_trains

    try:
        check_model(model)
    except InputError as error:
        raise Refused(Reason.INVALID_TERMS, "the model is not installed at this client") from error
    try:
        check_trains(model, inputs)
    except InputError as error:
        raise Refused(Reason.INVALID_TERMS, "the model cannot be trained on this client's kind of records") from error


def _warn_of_records(files: ClientFiles, model: str) -> None:
    """In this machine's log alone: to refuse the offer would tell the server of single records."""
    from jsam.training.federated.fit_records import fit_records
    from jsam.training.federated.parameters import known_labels

    inputs, targets = files.records()
    known, fit = known_labels(model, inputs, targets), fit_records(files, model)
    found = {"have labels that model %s has no class for": ~known, "cannot be computed by model %s": known & ~fit}
    for words, odd in found.items():
        if odd.any():
            what = f"%d of %d records {words}; they will count as nothing"
            logger.warning(what, int(odd.sum()), len(targets), model)


def _close(message: Message, context: Context) -> Answer:
    campaign = str(_record(message, "close").get("campaign", ""))
    _ledger(_client(context)).close(campaign)
    return {"closed": campaign}, None


def _release(message: Message, context: Context, noise: Noise) -> Answer:
    from jsam.training.federated.fit_records import fit_records, mean_of_fit
    from jsam.training.federated.parameters import digest, fits

    files = _client(context)
    asked = dict(_record(message, "request"))
    ask_id = str(asked.pop("ask_id", ""))
    request = Request.from_dict(asked)
    ledger = _ledger(files)
    model, parameters = ledger.terms(request.campaign).public.model, _parameters(message)
    if not fits(model, parameters):
        # Before the books: a round is bound to its model, and this can be none.
        raise Refused(Reason.MALFORMED, "the parameters are not of the model that was agreed on")

    def compute(release: Release) -> bytes:
        inputs, targets = files.records()
        if len(targets) != release.samples:
            raise Refused(Reason.OTHER_SETTINGS, "the number of records is not the one that was agreed on")
        fit = fit_records(files, model)
        mean = mean_of_fit(model, parameters, inputs, targets, release.clip_norm, fit)
        return _stored(mean + noise(release.noise_std, len(mean)))

    reply = ledger.answer(request, compute, model=digest(parameters))
    return {"ask_id": ask_id, "round": request.round}, np.load(io.BytesIO(reply), allow_pickle=False)


def _in_turn(
    answer: Callable[[], RecordDict], message: Message, context: Context, times: ReplyTimes | None, paced: bool
) -> RecordDict:
    """The answer, one message after another, and of training (`paced`) once it may leave.

    Flower runs messages side by side. One that only queued for the books of another would say when that one's
    computation was over, and one that arrived in the middle of it could choose the moments at which it is told.
    """
    if times is None:
        return answer()
    try:
        folder = ClientFiles.of_node(context.node_config).ledger
    except Exception:  # noqa: BLE001 - the same trouble meets the answer, which puts it into words
        return answer()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(turn(folder, WAIT))
        except Refused as refusal:
            return _refused(message, refusal)
        return _on_time(answer, message, context, times) if paced else answer()


def _on_time(answer: Callable[[], RecordDict], message: Message, context: Context, times: ReplyTimes) -> RecordDict:
    """The answer once it may leave. A refusal waits too: it may come from a failure."""
    since = times.now()
    try:
        step = _step(message, context, times)
    except Exception:  # the same trouble meets the answer, which puts it into words; no record has been touched then
        logger.exception("the time of a reply cannot be found")
        step = SHORTEST_STEP
    try:
        return answer()
    finally:
        times.wait(since, step)


def _step(message: Message, context: Context, times: ReplyTimes) -> float:
    """By the terms of the campaign that the request names; where there are none nothing is computed either."""
    files = ClientFiles.of_node(context.node_config)
    if files.policy.reply_seconds is not None:
        return files.policy.reply_seconds
    try:
        campaign = str(_record(message, "request").get("campaign", ""))
        model = _ledger(files).terms(campaign).public.model
    except Refused:
        return SHORTEST_STEP
    inputs, targets = files.records()
    work = Work(model=model, kind=inputs.dtype.str, shape=inputs.shape, labels=targets.shape)
    return times.step(files.ledger, work)


def _ledger(files: ClientFiles) -> ClientLedger:
    return ClientLedger(files.ledger, files.policy)


def _parameters(message: Message) -> NDArray[np.float32]:
    try:
        return message.content.array_records["model"]["parameters"].numpy()
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(Reason.MALFORMED, "the request holds no parameters that can be read") from error


def _stored(release: NDArray[np.floating[Any]]) -> bytes:
    """Rounded to fp32, which is safe now that noise is in it."""
    buffer = io.BytesIO()
    np.save(buffer, release.astype(np.float32), allow_pickle=False)
    return buffer.getvalue()


def _record(message: Message, name: str) -> ConfigRecord:
    try:
        return message.content.config_records[name]
    except KeyError as error:
        raise Refused(Reason.MALFORMED, f"the message has no record {name!r}") from error


def _answered(message: Message, compute: Callable[[], Answer]) -> RecordDict:
    try:
        values, release = compute()
    except Refused as refusal:
        return _refused(message, refusal)
    except Exception:  # Flower would send the text of the exception to the server
        logger.exception("%s failed", message.metadata.message_type)
        values, release = {"refused": FAILED, "text": "the client could not answer; its own log says why"}, None
    content = RecordDict({"answer": ConfigRecord(dict(values))})
    if release is not None:
        content["release"] = ArrayRecord({"gradient": Array(release)})
    return content


def _refused(message: Message, refusal: Refused) -> RecordDict:
    logger.warning("refused %s (%s)", message.metadata.message_type, refusal, exc_info=refusal.__cause__)
    return RecordDict({"answer": ConfigRecord({"refused": refusal.code.value, "text": refusal.text})})


app = client_app()
# What `jsam supernode` runs.
deployed = client_app(times=ReplyTimes())
