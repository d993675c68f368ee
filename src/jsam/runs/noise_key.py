"""The secret key of a run's noise: a file of its own in the run's folder, for this user's eyes only.

It is kept so that a run that was killed repeats its very releases: with another key, a repeated round would be a second
release that nobody sold. `config.json` holds a hash of it, by which another key is noticed; from the hash of 128 random
bits nobody finds the bits.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from jsam.errors import RunFolderError
from jsam.files import write_atomically
from jsam.privacy import KEY_BYTES, keyed_bytes

_TEXT = re.compile(rb"[0-9a-f]{%d}\n" % (2 * KEY_BYTES))


def create_key(path: Path) -> bytes:
    """A new key from the operating system's entropy, on disk before anything is drawn from it."""
    key = secrets.token_bytes(KEY_BYTES)
    write_atomically(path, key.hex().encode() + b"\n")
    return key


def read_key(path: Path, check: object) -> bytes:
    """The key of a run that goes on, whose config holds `check`."""
    refuse_open_key(path)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} is missing: without it the rounds after the last checkpoint cannot repeat their releases; restore "
            "it to resume"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    if not _TEXT.fullmatch(text):
        raise RunFolderError(
            f"{path} is damaged: it must hold {2 * KEY_BYTES} hexadecimal digits; restore it to resume"
        )
    key = bytes.fromhex(text.decode())
    if check != key_check(key):
        raise RunFolderError(
            f"{path} is not the key that this run was begun with: a repeated round would be a second release; restore "
            "it to resume"
        )
    return key


def refuse_open_key(path: Path) -> None:
    """A key that others may read is no secret; where there is no key file, nothing is refused."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "posix" and mode & 0o077:
            raise RunFolderError(
                f"{path} may be read by others (mode {mode:04o}; it must be 0600), and whoever has it can take the "
                f"noise off: if nobody has read it, chmod 600 {path}"
            )


def key_check(key: bytes) -> str:
    """What config.json holds, so that another key is noticed."""
    return keyed_bytes(key, "check", size=16).hex()
