"""The ledger: nothing recorded is lost, nothing torn is believed, nothing is counted twice."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jsam.errors import InputError, JsamError
from jsam.privacy import Adjacency, Client, Ledger, Release, read_ledger


def release(round: int, client: Client = 0, multiplicity: int = 1, noise: float = 2.0) -> Release:
    return Release.of_draws(
        round=round,
        client=client,
        multiplicity=multiplicity,
        noise_multiplier=noise / 3,
        clip_norm=6.0,
        samples=600,
        adjacency="add-remove",
        delta=1e-5,
    )


def a_round(round: int, clients: int = 3) -> list[Release]:
    return [release(round, client, 1 + client) for client in range(clients)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_what_is_appended_is_read_back_exactly(path: Path) -> None:
    """Floats too: every digit survives the file."""
    with Ledger(path) as ledger:
        for round in range(5):
            assert ledger.append(a_round(round)) == 3
        expected = [entry for round in range(5) for entry in a_round(round)]
        assert list(ledger) == expected
        assert len(ledger) == 15
    assert list(read_ledger(path)) == expected
    with Ledger(path) as ledger:
        assert list(ledger) == expected


def test_a_record_is_on_disk_when_append_returns(path: Path) -> None:
    with Ledger(path) as ledger:
        for round in range(3):
            ledger.append(a_round(round))
            assert len(read_ledger(path)) == 3 * (round + 1)


def test_cut_at_every_byte_of_the_last_record_only_the_torn_record_goes(path: Path) -> None:
    with Ledger(path, fsync=False) as ledger:
        ledger.append(a_round(0))
        ledger.append([release(1)])
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in range(start, len(whole) + 1):
        path.write_bytes(whole[:cut])
        # Without only its line end the record is whole, and a whole record is never dropped.
        expected = a_round(0) + ([release(1)] if cut >= len(whole) - 1 else [])
        assert list(read_ledger(path)) == expected
        assert path.read_bytes() == whole[:cut], "reading must not touch the file"
        with Ledger(path, fsync=False) as ledger:
            assert list(ledger) == expected
            ledger.append([release(1)])
            ledger.append([release(2)])
        assert list(read_ledger(path)) == [*a_round(0), release(1), release(2)]
        assert path.read_bytes().startswith(whole)


def test_cut_anywhere_in_a_round_the_resumed_round_completes_the_file_to_the_same_bytes(path: Path) -> None:
    with Ledger(path, fsync=False) as ledger:
        ledger.append(a_round(0))
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with Ledger(path, fsync=False) as ledger:
            ledger.append(a_round(0))
        assert path.read_bytes() == whole


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_is_dropped(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(a_round(0))
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 512)
    with Ledger(path) as ledger:
        assert len(ledger) == 3
    assert path.read_bytes() == whole


def test_a_repeated_release_is_recorded_once(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(a_round(0))
        before = path.read_bytes()
        assert ledger.append(a_round(0)) == 0
    with Ledger(path) as ledger:
        assert ledger.append(a_round(0, clients=4)) == 1
    assert path.read_bytes().startswith(before)
    assert len(read_ledger(path)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"noise_std": 0.1},
        {"multiplicity": 2},
        {"clip_norm": 5.0},
        {"delta": 1e-6},
        {"sensitivity": 0.5},
        {"samples": 601},
    ],
)
def test_a_repeat_that_differs_is_refused_by_name_and_writes_nothing(path: Path, change: dict[str, float]) -> None:
    with Ledger(path) as ledger:
        ledger.append([release(4, "b")])
        before = path.read_bytes()
        changed = replace(release(4, "b"), **change)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"round 4, client b .* with {next(iter(change))} .* must be identical"):
            ledger.append([release(4, "a"), changed])
        assert path.read_bytes() == before
        assert len(ledger) == 1


def test_a_client_twice_in_one_append_is_refused(path: Path) -> None:
    """Two releases of one round would be two spendings; taking the second for a repeat would hide one."""
    with Ledger(path) as ledger:
        with pytest.raises(InputError, match="client 0 appears twice in round 1"):
            ledger.append([release(1), release(1)])
        assert len(ledger) == 0
        assert ledger.append([]) == 0


def test_several_rounds_are_recorded_together_or_not_at_all(path: Path) -> None:
    """Rounds queued on a device in one go are written down in one go."""
    with Ledger(path) as ledger:
        with pytest.raises(InputError, match="client 0 appears twice in round 2"):
            ledger.append([release(1), release(2), release(2)])
        assert len(ledger) == 0
        assert ledger.append([release(1), release(2)]) == 2
        assert ledger.append([release(2), release(3)]) == 1


def test_damage_before_the_end_is_reported_never_skipped(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.append(a_round(0))
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged, message in [
        (lines[1][:20] + b"\n", "line 2 is damaged"),
        (b"\n", "line 2 is damaged"),
        (b"[]\n", "line 2 is damaged"),
        (lines[1].replace(b'"delta":1e-05', b'"delta":2'), "line 2: delta is 2"),
        (lines[1].replace(b'"round"', b'"rund"'), "line 2: the record lacks round, has unknown rund"),
        (lines[1] + lines[1], "line 3 repeats round 0, client 0"),
    ]:
        path.write_bytes(lines[0] + damaged + b"".join(lines[2:]))
        before = path.read_bytes()
        with pytest.raises(InputError, match=message):
            read_ledger(path)
        with pytest.raises(InputError, match=message):
            Ledger(path)
        assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my diary", b'{"jsam_ledger":2}\n', b"id,sensitivity\na,1\n"])
def test_somebody_elses_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a ledger of this version"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_missing_or_empty_ledger_is_named(path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_ledger(path)
    path.touch()
    with pytest.raises(InputError, match="is empty"):
        read_ledger(path)
    with pytest.raises(JsamError, match="cannot be opened"):
        Ledger(path.parent / "no" / "ledger.jsonl")


def test_a_second_writer_is_refused(path: Path) -> None:
    with Ledger(path), pytest.raises(JsamError, match="is being written by another process"):
        Ledger(path)
    Ledger(path).close()


def test_a_closed_ledger_records_nothing(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close()
    ledger.close()
    with pytest.raises(JsamError, match="is closed"):
        ledger.append([release(0)])


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """os.write that takes only `room` more bytes, in small pieces, and then has no space left."""
    state = {"room": 1 << 30}
    real = os.write

    def write(handle: int, data: memoryview) -> int:
        if state["room"] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(handle, data[: min(100, state["room"])])
        state["room"] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    return state


def test_a_full_disk_leaves_the_earlier_records_and_a_usable_ledger(path: Path, full_disk: dict[str, int]) -> None:
    with Ledger(path) as ledger:
        ledger.append(a_round(0))
        before = path.read_bytes()
        for room in (0, 1, 250, 400):
            full_disk["room"] = room
            with pytest.raises(JsamError, match=r"No space left.*round 1 is not recorded.*3 earlier releases are kept"):
                ledger.append(a_round(1))
            assert path.read_bytes() == before
            assert len(ledger) == 3
        full_disk["room"] = 1 << 30
        assert ledger.append(a_round(1)) == 3
    assert list(read_ledger(path)) == a_round(0) + a_round(1)


def test_a_full_disk_that_cannot_even_be_tidied_stops_this_writer_and_the_next_open_recovers(
    path: Path, full_disk: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Ledger(path) as ledger:
        ledger.append(a_round(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fail)
            full_disk["room"] = 250
            with pytest.raises(JsamError, match="round 1 is not recorded"):
                ledger.append(a_round(1))
        full_disk["room"] = 1 << 30
        with pytest.raises(JsamError, match="open it anew"):
            ledger.append(a_round(1))
    with Ledger(path) as ledger:
        ledger.append(a_round(1))
    assert list(read_ledger(path)) == a_round(0) + a_round(1)


LIMITED = """
import resource, sys
from jsam.errors import JsamError
from jsam.privacy import Ledger, Release
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
done = 0
try:
    with Ledger(sys.argv[1]) as ledger:
        while True:
            ledger.append([Release.of_draws(round=done, client=k, multiplicity=1, noise_multiplier=1.5, clip_norm=6.0,
                samples=600, adjacency="replace", delta=1e-5) for k in range(3)])
            done += 1
except JsamError as error:
    print(done, error)
"""


def test_the_systems_own_size_limit_ends_in_one_clear_line_with_all_whole_rounds_kept(path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    rounds = int(ran.stdout.split()[0])
    assert rounds > 0
    assert "could not be written (File too large)" in ran.stdout
    assert {entry.round for entry in read_ledger(path)} == set(range(rounds))
    assert len(read_ledger(path)) == 3 * rounds


def test_an_interrupt_while_writing_leaves_no_half_round(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with Ledger(path) as ledger:
        ledger.append(a_round(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.append(a_round(1))
        ledger.append(a_round(2))
    assert list(read_ledger(path)) == a_round(0) + a_round(2)


@pytest.mark.parametrize("wanted", [True, False])
def test_fsync_is_called_once_a_round_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    with Ledger(path, fsync=wanted) as ledger:
        calls: list[int] = []
        monkeypatch.setattr(os, "fsync", calls.append)
        ledger.append(a_round(0))
        ledger.append(a_round(1))
        assert len(calls) == (2 if wanted else 0)


def test_a_release_of_several_draws_carries_less_noise_once() -> None:
    one, four = release(0, multiplicity=1), release(0, multiplicity=4)
    assert four.noise_std == pytest.approx(one.noise_std / 2, rel=1e-15)
    assert one.sensitivity == four.sensitivity == 6.0 / 600
    swapped = Release.of_draws(
        round=0,
        client=0,
        multiplicity=1,
        noise_multiplier=1.0,
        clip_norm=6.0,
        samples=600,
        adjacency="replace",
        delta=1e-5,
    )
    assert swapped.sensitivity == 2 * one.sensitivity
    assert swapped.noise_std == 0.01


def test_numpy_numbers_are_recorded_as_plain_ones(path: Path) -> None:
    numbers = {"round": np.int64(3), "client": np.int64(7), "multiplicity": np.int32(2), "noise_std": np.float64(0.5)}
    entry = replace(release(0), **numbers)  # type: ignore[arg-type]
    with Ledger(path) as ledger:
        ledger.append([entry])
    record = json.loads(path.read_text().splitlines()[1])
    assert (record["round"], record["client"], record["multiplicity"], record["noise_std"]) == (3, 7, 2, 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"round": -1}, "round is -1; it must be a whole number of at least 0"),
        ({"round": 1.0}, "round is 1.0"),
        ({"client": True}, "client is True"),
        ({"client": None}, "client is None"),
        ({"multiplicity": 0}, "multiplicity is 0; it must be a whole number of at least 1"),
        ({"samples": 0}, "samples is 0"),
        ({"clip_norm": 0.0}, "clip_norm is 0; it must be above 0"),
        ({"noise_std": float("nan")}, "noise_std is nan; it must be a finite number"),
        ({"noise_std": "0.5"}, "noise_std is '0.5'"),
        ({"noise_std": -1.0}, "noise_std is -1; it must be at least 0"),
        ({"delta": 1.0}, "delta is 1; it must lie strictly between 0 and 1"),
        ({"adjacency": "swap"}, "adjacency is 'swap'"),
        ({"sensitivity": 0.00999}, "sensitivity is 0.00999; .* it must be at least 0.01"),
        ({"adjacency": Adjacency.REPLACE}, "sensitivity is 0.01; .* adjacency replace it must be at least 0.02"),
    ],
)
def test_an_impossible_release_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(release(0), **change)  # type: ignore[arg-type]
