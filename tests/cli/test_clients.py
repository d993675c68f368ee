"""CLIENTS.csv as spreadsheets and scripts write it."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from jsam.cli.clients import read_clients
from jsam.mechanism.priors import UniformPrior
from tests.cli.conftest import UNIFORM, Run, WriteClients

PLAIN = "id,sensitivity\na,0.2\nb,0.5\nc,0.9\n"

SAME = {
    "BOM and CRLF": "\ufeffid,sensitivity\r\na,0.2\r\nb,0.5\r\nc,0.9\r\n".encode(),
    "BOM, CRLF and no last line end": "\ufeffid,sensitivity\r\na,0.2\r\nb,0.5\r\nc,0.9".encode(),
    "old Mac line ends": b"id,sensitivity\ra,0.2\rb,0.5\rc,0.9\r",
    "other order": b"sensitivity,id\n0.2,a\n0.5,b\n0.9,c\n",
    "a column without a name": b"id,sensitivity,\na,0.2,x\nb,0.5,\nc,0.9,\n",
    "capitals and blanks": b"ID, Sensitivity\na , 0.2\nb, 0.5\nc,0.9\n",
    "quotes": b'"id","sensitivity"\n"a","0.2"\n"b","0.5"\n"c","0.9"\n',
    "blank lines and emptied rows": b"\nid,sensitivity\na,0.2\n\n,\nb,0.5\nc,0.9\n,\n\n",
    "exponents": b"id,sensitivity\na,2e-1\nb,.5\nc,9E-01\n",
    "equal samples": b"id,sensitivity,samples\na,0.2,600\nb,0.5,600\nc,0.9,600\n",
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_clients_written_otherwise(case: str, run: Run, clients: WriteClients) -> None:
    """All of them give the plan of the plain file, byte for byte."""
    plain = run("plan", clients(PLAIN), *UNIFORM, "--format", "json")
    other = run("plan", clients(SAME[case]), *UNIFORM, "--format", "json")
    assert other == plain
    assert plain.code == 0


def test_ids_may_hold_anything_that_csv_can(clients: WriteClients) -> None:
    table = read_clients(clients('id,sensitivity\n"Bank, ""North""",0.2\nüñí,0.3\n"two\nlines",0.4\n[red],0.5\n'))
    assert table.ids == ['Bank, "North"', "üñí", "two\nlines", "[red]"]
    assert table.lines == [2, 3, 4, 6]


def test_a_dash_reads_standard_input(run: Run, clients: WriteClients, monkeypatch: pytest.MonkeyPatch) -> None:
    from_file = run("plan", clients(PLAIN), *UNIFORM, "--format", "csv")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(PLAIN.encode())))
    assert run("plan", "-", *UNIFORM, "--format", "csv") == from_file


def test_a_client_may_have_a_prior_of_its_own(run: Run, clients: WriteClients) -> None:
    """Blank cells take --prior; equal texts share one distribution."""
    path = clients('id,sensitivity,prior\na,0.2,\nb,0.2,"uniform:0.1,1"\nc,0.2,"beta:2,5"\nd,0.3,"uniform:0.1,1"\n')
    market = read_clients(path).market("uniform:0,1")
    assert isinstance(market.prior, tuple)
    assert market.prior[0] == UniformPrior(bottom=0.0, top=1.0)
    assert market.prior[1] is market.prior[3]
    np.testing.assert_allclose(market.virtual_costs[[0, 1, 3]], [0.4, 0.3, 0.5])
    content = json.loads(run("plan", path, *UNIFORM, "--format", "json").out)
    assert [client["virtual_cost"] for client in content["clients"]] == market.virtual_costs.tolist()


def test_no_shared_prior_is_needed_where_all_have_their_own(run: Run, clients: WriteClients) -> None:
    own = clients('id,sensitivity,prior\na,0.2,"uniform:0,1"\nb,0.5,"uniform:0,1"\nc,0.9,"uniform:0,1"\n')
    with_own = run("plan", own, "--loss-weight", "5", "--format", "csv")
    assert with_own == run("plan", clients(PLAIN), *UNIFORM, "--format", "csv")
    assert with_own.code == 0


@pytest.mark.parametrize("command", ["plan", "compare", "audit"])
def test_columns_that_are_not_used_are_named_once(command: str, run: Run, clients: WriteClients) -> None:
    """They change nothing else, and nothing is said of columns that are known."""
    plain = run(command, clients(PLAIN), *UNIFORM, "--format", "csv")
    path = clients("Name,id,sensitivity,loss,\nAnna,a,0.2,1,x\n,b,0.5,1,\nCleo,c,0.9,1,\n")
    named = run(command, path, *UNIFORM, "--format", "csv", *(["--mechanism", "jsam"] if command == "compare" else []))
    assert (plain.err, named.code) == ("", 0)
    if command != "compare":
        assert named.out == plain.out
    known = "known are id, sensitivity, samples, loss, prior, selection_prob"
    assert named.err == f"jsam: {path}: column 'Name' not used; {known}\n"


def test_of_many_columns_that_are_not_used_some_are_named(run: Run, clients: WriteClients) -> None:
    head = ",".join(f"x{k}" for k in range(30))
    path = clients(f"id,sensitivity,{head}\na,0.2{',1' * 30}\nb,0.3{',1' * 30}\n")
    said = run("plan", path, *UNIFORM).err
    assert "columns 'x0', 'x1'" in said
    assert "'x7', … not used" in said
    assert said.count("\n") == 1


def test_bad_input_stays_one_line_where_columns_are_not_used(run: Run, clients: WriteClients) -> None:
    result = run("plan", clients("id,sensitivity,age\na,-1,30\n"), *UNIFORM)
    assert (result.code, result.err.count("\n")) == (2, 1)


def test_a_plan_can_be_planned_again(run: Run, clients: WriteClients) -> None:
    """The CSV of a plan is good input: its other columns, zeros among them, are ignored."""
    first = run("plan", clients(PLAIN), "--prior", "uniform:0,1", "--loss-weight", "0.1", "--format", "csv")
    assert ",0.0,0.0,0.0" in first.out
    again = run("plan", clients(first.out), "--prior", "uniform:0,1", "--loss-weight", "0.1", "--format", "csv")
    assert (again.code, again.out) == (0, first.out)
    assert "columns 'virtual_cost', 'epsilon', 'payment' not used" in again.err
