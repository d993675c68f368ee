"""The client's half as Flower loads it: each kind of message goes to `jsam.campaign.client.answering.Client`."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from jsam.campaign.client.answering import Client, Noise
from jsam.campaign.client.client_files import ClientFiles
from jsam.campaign.client.client_noise import fresh_noise
from jsam.campaign.client.reply_times import ReplyTimes, Work
from jsam.campaign.messages import Kind
from jsam.flower.messaging import MESSAGES, content_of, question_in


def client_app(noise: Noise = fresh_noise, times: ReplyTimes | None = None) -> ClientApp:
    """A ClientApp; `noise(std, size)` is there for tests that switch it off, and nothing in a message can reach it.

    With `times` the replies of training leave at moments that tell nothing of the records; without, at once.
    """
    app = ClientApp()

    def answers(kind: Kind) -> Any:
        def answered(message: Message, context: Context) -> Message:
            # torch is loaded late: a process that only forks, or serves another app, does without.
            from jsam.training.federated import local_training

            client = Client(
                load=lambda: ClientFiles.of_node(context.node_config), training=local_training, noise=noise, times=times
            )
            answer = client.answer(question_in(message, kind))
            # Made last of all: a message says to the microsecond when it was made.
            return Message(content_of(answer), reply_to=message)

        return answered

    for kind, (message_type, _) in MESSAGES.items():
        action = message_type.removeprefix("query.")
        register = app.train() if kind is Kind.ROUND else app.query(action)
        register(answers(kind))
    return app


def reply_seconds(work: Work) -> float:
    """Seconds that a reply's computation takes on made-up records and with a made-up model."""
    from jsam.training.federated.local_training import measured

    return measured(work.model, work.kind, work.shape, work.labels)


app = client_app()
# What `jsam supernode` runs.
deployed = client_app(times=ReplyTimes(measure=reply_seconds))
