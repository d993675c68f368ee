"""Downloads over HTTPS that go on where they were torn, and give up quickly when there is no network."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from jsam.errors import DownloadError
from jsam.training.data.data_files import (
    CHUNK_BYTES,
    MOST_UNPACKED,
    Progress,
    ProgressCallback,
    open_to_write,
    translated_write_errors,
)

# One limit serves connecting and every read: a stalled transfer is torn here and resumed by the next attempt.
TIMEOUT_SECONDS = 8.0
ATTEMPTS = 5


def download(
    url: str,
    destination: Path,
    *,
    progress: ProgressCallback,
    timeout: float = TIMEOUT_SECONDS,
    limit: int = MOST_UNPACKED,
) -> bool:
    """Fetch `url` into `destination` through `destination.part`, which outlives a failure and is resumed.

    True if any part of it came from an earlier run: its checksum may then be wrong for no fault of the place.
    A place that sends more than `limit` bytes is given up, and what it sent is removed.
    """
    part = destination.with_name(destination.name + ".part")
    resumed = part.is_file() and part.stat().st_size > 0
    for _ in range(ATTEMPTS):
        try:
            whole, fresh = _attempt(url, part, progress, timeout, limit)
        except urllib.error.HTTPError as error:
            error.close()
            raise DownloadError(f"{_host(url)}: HTTP {error.code}") from error
        except urllib.error.URLError as error:
            raise DownloadError(f"{_host(url)}: no connection") from error
        except (OSError, http.client.HTTPException) as error:
            if not part.is_file():
                raise DownloadError(f"{_host(url)}: no connection") from error
            continue  # torn: the next attempt goes on from where the part ends
        resumed = resumed and not fresh
        if whole:
            with translated_write_errors(destination):
                os.replace(part, destination)
            return resumed
    raise DownloadError(f"{_host(url)}: torn {ATTEMPTS} times; run again to go on from there")


def _attempt(url: str, part: Path, progress: ProgressCallback, timeout: float, limit: int) -> tuple[bool, bool]:
    """One request from where `part` ends: is the file whole now, and was it begun afresh?"""
    done = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "jsam", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
        # Nothing after `done`: either the part is the whole file, or it belongs to another one.
        match = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        whole = match is not None and int(match.group(1)) == done
        error.close()
        if not whole:
            with translated_write_errors(part):
                part.unlink()
        return whole, not whole
    with response:
        content_range = response.headers.get("Content-Range", "")
        fresh = response.status != 206 or not content_range.startswith(f"bytes {done}-")
        if fresh:
            if response.status == 206:
                raise http.client.HTTPException("the server sent another range than the one asked for")
            done = 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with open_to_write(part, "wb" if fresh else "ab") as out:
            progress(Progress(step=_step(url), done=done, total=total))
            while chunk := response.read(CHUNK_BYTES):
                with translated_write_errors(part):
                    out.write(chunk)
                done += len(chunk)
                if done > limit:
                    part.unlink()
                    raise DownloadError(f"{_host(url)}: sends more than {limit} bytes")
                progress(Progress(step=_step(url), done=done, total=total))
            with translated_write_errors(part):
                out.flush()
    return total is None or done == total, fresh


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc


def _step(url: str) -> str:
    return f"{url.rsplit('/', 1)[-1]} from {_host(url)}"
