"""The library speaks of its arguments; whoever typed options reads of options."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click


def invoked(program: click.Command, arguments: Sequence[str]) -> click.Command:
    """The command that these arguments run, or the group that they stop at."""
    command = program
    for word in arguments:
        if isinstance(command, click.Group):
            command = command.commands.get(word, command)
    return command


def in_options(message: str, command: click.Command | None = None) -> str:
    """The message with the options of the command, or of the one that is running, as they are typed.

    A name such as `loss_weight` is no English word and is replaced wherever it stands alone; one such as `alpha` only
    where the message begins with it or asks to set it. Quoted names are left, they come from files, and so is all
    that follows the name of a TOML file. `num_clients` is what `--clients` counts.
    """
    context = click.get_current_context(silent=True)
    if command is None and context is not None:
        command = context.command
    message, of_file, settings = message.partition(".toml: ")
    for parameter in [] if command is None else command.params:
        typed = next((option for option in parameter.opts if option.startswith("--")), None)
        if typed is None or parameter.name is None:
            continue
        for name in (parameter.name, f"num_{parameter.name}"):
            alone = rf"(?<![\w'\"`/.-]){name}(?![\w'\"`/-]|\.\w)"
            if name.isalpha():
                alone = rf"(?:^|(?<=\bset )|(?<=\braise )){name}(?= is | to | \(|:? '| -?\d)"
            message = re.sub(alone, typed, message)
    return re.sub(r"(--[\w-]+) is None\b", r"\1 is missing", message) + of_file + settings


def usage_line(error: click.ClickException) -> str:
    """What click says about a command line that it cannot read, and where to look it up."""
    message = error.format_message().replace(" is not a valid integer range.", " is not a valid integer.").strip()
    message = re.sub(r"( Did you mean [^?]+\?)\1", r"\1", message)  # typer and click both have this idea
    context = getattr(error, "ctx", None)
    if not message or context is None:
        return message
    if message.endswith("?"):
        return f"{message} See {context.command_path} --help"
    return f"{message.rstrip('.')}; see {context.command_path} --help"
