"""A client's own settings come from its own machine, by node config, file or, in a simulation, by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jsam.campaign.client.client_files import SIMULATED_CLIENTS, ClientFiles, client_folder, write_client
from jsam.errors import InputError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    inputs = np.arange(2 * 64, dtype=np.float64).reshape(2, 1, 8, 8)
    return write_client(
        client_folder(tmp_path, 3),
        name="hospital-a",
        sensitivity=0.23,
        inputs=inputs,
        targets=np.array([1, 0]),
        policy="max_epsilon = 2.0\n",
    )


def test_the_node_config_names_the_file_and_may_say_the_sensitivity(file: Path) -> None:
    found = ClientFiles.of_node({"client-file": str(file)})
    assert (found.name, found.sensitivity, found.policy.max_epsilon) == ("hospital-a", 0.23, 2.0)
    assert found.ledger == file.parent / "ledger"
    assert ClientFiles.of_node({"client-file": str(file), "sensitivity": 0.7}).sensitivity == 0.7


def test_records_are_read_in_the_form_that_training_takes(file: Path) -> None:
    inputs, targets = ClientFiles.load(file).records()
    assert (inputs.dtype.name, targets.dtype.name) == ("float32", "int64")
    assert targets.tolist() == [1, 0]


def test_a_simulated_client_is_found_by_number(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATED_CLIENTS, str(file.parent.parent))
    assert ClientFiles.of_node({"partition-id": 3, "num-partitions": 4}).name == "hospital-a"


@pytest.mark.parametrize("config", [{}, {"partition-id": 0}])
def test_without_a_file_there_is_no_client(config: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIMULATED_CLIENTS, raising=False)
    with pytest.raises(InputError, match="client-file"):
        ClientFiles.of_node(config)


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sensitivity_that_is_none_is_refused(sensitivity: float, file: Path) -> None:
    with pytest.raises(InputError, match="sensitivity is"):
        ClientFiles.load(file, sensitivity=sensitivity)


def test_data_that_do_not_fit_together_are_refused(file: Path) -> None:
    np.savez(file.parent / "data.npz", inputs=np.zeros((2, 3)), targets=np.zeros(1, dtype=np.int64))
    with pytest.raises(InputError, match="2 inputs and 1 targets"):
        ClientFiles.load(file).records()


def test_data_of_another_kind_are_refused(file: Path) -> None:
    """Text, one bare array, half a file, other names, and a folder."""
    data = file.parent / "data.npz"
    whole = data.read_bytes()
    for content in (b"some text", b"", whole[: len(whole) // 2]):
        data.write_bytes(content)
        with pytest.raises(InputError, match=r"is no \.npz file"):
            ClientFiles.load(file).records()
    with data.open("wb") as target:
        np.save(target, np.zeros(3))
    with pytest.raises(InputError, match=r"is no \.npz file"):
        ClientFiles.load(file).records()
    np.savez(data, images=np.zeros(3), targets=np.zeros(3))
    with pytest.raises(InputError, match="`inputs` and `targets`"):
        ClientFiles.load(file).records()
    data.unlink()
    data.mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        ClientFiles.load(file).records()


@pytest.mark.parametrize("name", ["data", "ledger", "policy"])
def test_a_path_that_is_no_text_is_refused(name: str, file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith(name)]
    file.write_text("\n".join([*lines, f"{name} = 3"]))
    with pytest.raises(InputError, match=f"{name} is 3; it must be a path in quotes"):
        ClientFiles.load(file)
