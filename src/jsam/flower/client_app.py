"""The client's half: it reports, judges its offer, and releases noisy gradients within what it agreed to.

Everything that decides comes from this machine: the code that clips and adds noise, the data, the ledger, the policy. A
message can only ask. Whatever goes wrong, a reply carries a named reason and no data, no paths, no exception's text.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from jsam.errors import InputError
from jsam.flower.client_files import ClientFiles
from jsam.flower.client_ledger import ClientLedger
from jsam.flower.noise import fresh_noise
from jsam.flower.refusal import FAILED, Reason, Refused
from jsam.flower.requests import Request
from jsam.flower.terms import Terms
from jsam.privacy import Release

Noise = Callable[[float, int], NDArray[np.float32]]
Answer = tuple[Mapping[str, Any], NDArray[np.float32] | None]

logger = logging.getLogger("flwr.jsam")


def client_app(noise: Noise = fresh_noise) -> ClientApp:
    """A ClientApp; `noise(std, size)` is there for tests that switch it off, and nothing in a message can reach it."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _answered(message, lambda: _hello(context))

    @app.query("elicit")
    def elicit(message: Message, context: Context) -> Message:
        return _answered(message, lambda: _elicit(message, context))

    @app.query("offer")
    def offer(message: Message, context: Context) -> Message:
        return _answered(message, lambda: _offer(message, context))

    @app.query("close")
    def close(message: Message, context: Context) -> Message:
        return _answered(message, lambda: _close(message, context))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answered(message, lambda: _release(message, context, noise))

    return app


def _hello(context: Context) -> Answer:
    return {"client": ClientFiles.of_node(context.node_config).name}, None


def _elicit(message: Message, context: Context) -> Answer:
    files = ClientFiles.of_node(context.node_config)
    samples = len(files.records()[1])
    # Kept before the report leaves: the offer will be held against it.
    _ledger(files).hear(str(_record(message, "published").get("text", "")))
    return {"client": files.name, "sensitivity": float(files.sensitivity), "samples": samples}, None


def _offer(message: Message, context: Context) -> Answer:
    files = ClientFiles.of_node(context.node_config)
    try:
        terms = Terms.from_json(str(_record(message, "offer").get("terms", "")))
    except InputError as error:
        raise Refused(Reason.MALFORMED, "the offer holds no terms that can be read") from error
    if terms.client != files.name:
        raise Refused(Reason.OTHER_CONTRACT, "the offer is for another client")
    inputs, targets = files.records()
    _know(terms.public.model, inputs)
    _warn_of_labels(terms.public.model, inputs, targets)
    _ledger(files).accept(terms, sensitivity=files.sensitivity, samples=len(targets), published=True)
    return {"accepted": terms.hash}, None


def _know(model: str, inputs: NDArray[Any]) -> None:
    """Without the model, or with one for other records, every draw would be spent for nothing."""
    from jsam.flower.models import check_model
    from jsam.flower.parameters import check_trains

    try:
        check_model(model)
    except InputError as error:
        raise Refused(Reason.INVALID_TERMS, "the model is not installed at this client") from error
    try:
        check_trains(model, inputs)
    except InputError as error:
        raise Refused(Reason.INVALID_TERMS, "the model cannot be trained on this client's kind of records") from error


def _warn_of_labels(model: str, inputs: NDArray[Any], targets: NDArray[np.int64]) -> None:
    """In this machine's log alone: to refuse the offer would tell the server of single records."""
    from jsam.flower.parameters import known_labels

    unknown = int((~known_labels(model, inputs, targets)).sum())
    if unknown:
        logger.warning(
            "%d of %d records have labels that model %s has no class for; they will count as nothing",
            unknown,
            len(targets),
            model,
        )


def _close(message: Message, context: Context) -> Answer:
    campaign = str(_record(message, "close").get("campaign", ""))
    _ledger(ClientFiles.of_node(context.node_config)).close(campaign)
    return {"closed": campaign}, None


def _release(message: Message, context: Context, noise: Noise) -> Answer:
    from jsam.flower.parameters import clipped_mean, digest, fits

    files = ClientFiles.of_node(context.node_config)
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
        mean = clipped_mean(model, parameters, inputs, targets, release.clip_norm)
        return _stored(mean + noise(release.noise_std, len(mean)))

    reply = ledger.answer(request, compute, model=digest(parameters))
    return {"ask_id": ask_id, "round": request.round}, np.load(io.BytesIO(reply), allow_pickle=False)


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


def _answered(message: Message, compute: Callable[[], Answer]) -> Message:
    content = RecordDict()
    try:
        values, release = compute()
        if release is not None:
            content["release"] = ArrayRecord({"gradient": Array(release)})
    except Refused as refusal:
        logger.warning("refused %s (%s)", message.metadata.message_type, refusal, exc_info=refusal.__cause__)
        values = {"refused": refusal.code.value, "text": refusal.text}
    except Exception:  # Flower would send the text of the exception to the server
        logger.exception("%s failed", message.metadata.message_type)
        values = {"refused": FAILED, "text": "the client could not answer; its own log says why"}
    content["answer"] = ConfigRecord(dict(values))
    return Message(content, reply_to=message)


app = client_app()
