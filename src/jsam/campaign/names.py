"""Which names a client may bear: names become parts of files, logs and pages, on the server and elsewhere."""

from __future__ import annotations

LONGEST_NAME = 100
ALLOWED = f"1 to {LONGEST_NAME} printable characters without / and \\, and not . or .."


def is_name(name: object) -> bool:
    """Whether a client may be called so; the same rule for its own file, its first word and the list of keys."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        return False
    # In bytes, since file systems count these: 200 and a few for what is put before and after.
    return len(name.encode()) <= 2 * LONGEST_NAME and name not in (".", "..") and not set(name) & set("/\\")
