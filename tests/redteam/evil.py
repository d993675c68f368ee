"""A client that keeps to the protocol but where a test makes it say something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

Made = Callable[[np.ndarray[Any, Any]], ArrayRecord]


def honest_zeros(parameters: np.ndarray[Any, Any]) -> ArrayRecord:
    return ArrayRecord({"gradient": Array(np.zeros_like(parameters))})


def evil_client(
    *,
    name: Any = "evil",
    report: dict[str, Any] | None = None,
    offer: dict[str, Any] | None = None,
    release: Made = honest_zeros,
    train: dict[str, Any] | None = None,
) -> ClientApp:
    """A client that keeps to the protocol but for what is given here."""
    app = ClientApp()

    def answer(message: Message, values: dict[str, Any], record: ArrayRecord | None = None) -> Message:
        content = RecordDict({"answer": ConfigRecord(values)})
        if record is not None:
            content["release"] = record
        return Message(content, reply_to=message)

    @app.query("hello")
    def hello(message: Message, _: Context) -> Message:
        return answer(message, {"client": name})

    @app.query("elicit")
    def elicit(message: Message, _: Context) -> Message:
        told = {"client": name, "sensitivity": 0.05, "samples": 100}
        return answer(message, {key: value for key, value in {**told, **(report or {})}.items() if value is not None})

    @app.query("offer")
    def offered(message: Message, _: Context) -> Message:
        terms = json.loads(str(message.content.config_records["offer"]["terms"]))
        return answer(message, {"accepted": terms["hash"]} if offer is None else offer)

    @app.query("close")
    def close(message: Message, _: Context) -> Message:
        return answer(message, {"closed": "x"})

    @app.train()
    def trained(message: Message, _: Context) -> Message:
        request = message.content.config_records["request"]
        parameters = message.content.array_records["model"]["parameters"].numpy()
        values = {"ask_id": request["ask_id"], "round": request["round"]} if train is None else train
        return answer(message, values, release(parameters))

    return app
