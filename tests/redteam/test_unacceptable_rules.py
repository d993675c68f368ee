"""A client gives away nothing under rules that it would never accept, and has limits where nobody wrote any down."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import require

if not TYPE_CHECKING:
    require("flwr", extra="flower")

from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason
from tests.campaign.books import MODEL, ask, contents, folder_of, noisy, refused
from tests.campaign.offers import offer, public_inputs
from tests.campaign.test_announcement import published
from tests.redteam.hostile_server import RECORDS, HostileServer

UNREADABLE: list[dict[str, Any]] = [
    {"mechanism": "first tell me your cost"},
    {"mechanism": "usbm-compensated"},
    {"mechanism": "os:abort"},
    {"mechanism": 7},
    {"prior": "nonsense"},
    {"prior": "uniform:1,0"},
    {"prior": "norm:0,1"},
    {"prior": "empirical:/etc/passwd"},
    {"prior": " empirical:client.toml"},
    {"delta": 5.0},
    {"delta": 0},
    {"delta": "1e-5"},
    {"delta": True},
    {"adjacency": "none"},
    {"model": "not installed"},
    {"clip_norm": 1e-25},
    {"noise_weight": -1.0},
    {"loss_weight": "much"},
    {"rounds": 0},
    {"max_epsilon": "none"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> HostileServer:
    return HostileServer(tmp_path_factory.mktemp("server"), sensitivity=0.2345)


@pytest.mark.parametrize("changes", UNREADABLE, ids=str)
def test_rules_that_cannot_be_read_get_no_report_and_leave_nothing(
    changes: dict[str, Any], server: HostileServer
) -> None:
    before = contents(folder_of(server.ledger))
    answer = server.elicit(server.rules(campaign=f"n {changes}"), **changes)
    assert answer["refused"] == "unreadable-rules"
    assert "sensitivity" not in answer
    assert "0.23" not in str(answer)
    assert contents(folder_of(server.ledger)) == before


@pytest.mark.parametrize("name", ["", "a" * 201, "a\nb", "a\0b", "\ud800"])
def test_a_name_that_cannot_be_shown_is_refused_at_the_first_word(name: str, server: HostileServer) -> None:
    before = contents(folder_of(server.ledger))
    assert server.elicit(server.rules(), campaign=name)["refused"] == "malformed"
    assert contents(folder_of(server.ledger)) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": "trap_of_test:Mechanism"},
        {"mechanism": "trap_of_test"},
        {"prior": "trap_of_test:Prior"},
        {"prior": "trap_of_test.inner:1,2"},
        {"model": "trap_of_test:model"},
    ],
    ids=str,
)
def test_no_name_that_a_server_chooses_is_imported(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in rules nor in an offer, neither here nor in the process that computes priors."""
    trace = tmp_path / "imported"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "trap_of_test.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    server = HostileServer(tmp_path)
    assert server.elicit(server.rules(), **changes)["refused"] == "unreadable-rules"
    honest = server.rules(campaign="y")
    assert "sensitivity" in server.elicit(honest)
    stored = server.terms(honest).as_dict()
    stored["public"].update(changes)
    answer = server.offer_as_stored({**stored, "hash": "0" * 64})
    assert answer["refused"] in ("malformed", "invalid-terms", "rules-changed")
    assert not trace.exists()
    __import__("trap_of_test")
    assert trace.exists(), "the trap must work, or nothing was shown"
    sys.modules.pop("trap_of_test")


def test_a_prior_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("jsam.campaign.sandboxed_check.prior_support_apart.__kwdefaults__", {"seconds": 0.01})
    ledger = ClientLedger(tmp_path)
    assert refused(lambda: ledger.hear(published(prior="levy_stable:1.5,0.5"))) is Reason.RULES_UNREADABLE


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("", {"mechanism": "jsam-ci"}),
        ("", {"delta": 1 / RECORDS}),
        ("max_delta = 1e-6", {}),
        ('adjacency = ["replace"]', {}),
        ("", {"prior": "uniform:0.3,1"}),
        ("", {"prior": "uniform:0,0.2"}),
        ("", {"prior": "beta:2,5,0.25"}),
    ],
)
def test_rules_that_it_would_never_accept_get_no_report_and_no_reason(
    policy: str, changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner's own log says why. A no stays a no, and takes one of the campaigns that the client hears of."""
    server = HostileServer(tmp_path, policy=policy, sensitivity=0.2345)
    with caplog.at_level(logging.WARNING):
        answers = [server.elicit(server.rules(**changes)) for _ in range(3)]
    assert {answer["refused"] for answer in answers} == {"unacceptable-rules"}
    assert len({answer["text"] for answer in answers}) == 1
    assert "sensitivity" not in answers[0]
    assert answers[0]["text"] == "this client would accept nothing under the published rules"
    assert server.ledger.campaigns() == ("x",)
    assert server.ledger.statement() == ()
    assert "refused" in server.elicit(server.rules())  # the first word stands


def test_the_honest_rules_beside_them_get_a_report(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("", {}),
        ("complete_information = true", {"mechanism": "jsam-ci"}),
        ("max_delta = 1e-5", {}),
        ("", {"prior": "beta:2,5"}),
        ("", {"budget": 3.0, "loss_weight": None}),
        ("", {"mechanism": "fsbm-2"}),
    ]
    for number, (policy, changes) in enumerate(cases):
        server = HostileServer(tmp_path / str(number), policy=policy, sensitivity=0.2345)
        assert server.elicit(server.rules(**changes))["sensitivity"] == 0.2345


def test_limits_cannot_be_found_by_publishing_rules_without_end(tmp_path: Path) -> None:
    """A look at the policy costs a campaign, also where it ends with a no."""
    ledger = ClientLedger(tmp_path, Policy(max_delta=1e-6, max_campaigns=3))
    for number in range(3):
        assert refused(lambda: ledger.hear(published(campaign=f"c{number}"))) is Reason.RULES_UNACCEPTABLE  # noqa: B023
    assert refused(lambda: ledger.hear(published(campaign="c3"))) is Reason.TOO_MANY_CAMPAIGNS


def test_without_a_policy_file_nobody_buys_everything(tmp_path: Path) -> None:
    server = HostileServer(tmp_path)
    cases: list[tuple[dict[str, Any], int, float, str]] = [
        ({"max_epsilon": None}, 3, 1e6, "epsilon-too-large"),
        ({"rounds": 2**40, "per_round": 10**6}, 10**9, 3.0, "too-many-draws"),
    ]
    for number, (changes, draws, epsilon, code) in enumerate(cases):
        rules = server.rules(campaign=f"c{number}", **changes)
        assert "sensitivity" in server.elicit(rules)
        answer = server.offer(server.terms(rules, epsilon=epsilon, draws=draws, payment=1e9))
        assert answer["refused"] == "declined"
        assert code in answer["text"]
    assert server.ledger.statement() == ()


def test_an_offer_under_complete_information_is_declined_also_where_nothing_was_published(tmp_path: Path) -> None:
    terms = offer(public=public_inputs(mechanism="jsam-ci"))
    assert refused(lambda: ClientLedger(tmp_path).accept(terms)) is Reason.DECLINED
    ClientLedger(tmp_path / "willing", Policy(complete_information=True)).accept(terms)


def test_stored_replies_do_not_fill_the_disk(tmp_path: Path) -> None:
    """The oldest replies of the campaign make room; their rounds are never answered again, and the last one is."""
    ledger, terms = ClientLedger(tmp_path, Policy(max_stored_bytes=2500)), offer()
    ledger.accept(terms)
    replies = [ledger.answer(ask(terms, round), lambda release: noisy(release) * 40, model=MODEL) for round in range(5)]
    assert all(len(reply) == 800 for reply in replies)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.bin")) <= 2500 + 800
    assert ledger.answer(ask(terms, 4), noisy, model=MODEL) == replies[4]
    assert refused(lambda: ledger.answer(ask(terms, 0), noisy, model=MODEL)) is Reason.REPLY_LOST
    ledger.check()


def test_a_reply_that_could_not_be_kept_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """Another campaign holds the space."""
    ledger = ClientLedger(tmp_path, Policy(max_stored_bytes=500))
    first, second = offer(campaign="a"), offer(campaign="b")
    for terms in (first, second):
        ledger.accept(terms)
    ledger.answer(ask(first, 0), lambda release: noisy(release) * 40, model=MODEL)
    before = contents(tmp_path)
    assert refused(lambda: ledger.answer(ask(second, 0), noisy, model=MODEL)) is Reason.NO_SPACE
    assert contents(tmp_path) == before
    ledger.close("a")
    ledger.answer(ask(second, 0), noisy, model=MODEL)


def test_a_paused_client_answers_nothing_and_goes_on_where_it_was(tmp_path: Path) -> None:
    server = HostileServer(tmp_path)
    terms = server.agreed()
    first = server.ask(terms, 0)[1]
    server.ledger.pause()
    before = contents(folder_of(server.ledger))
    rules = server.rules(campaign="new")
    for answer in (
        server.hello(),
        server.elicit(rules),
        server.offer(server.terms(rules)),
        server.ask(terms, 0)[0],
        server.ask(terms, 1)[0],
        server.close("x"),
    ):
        assert answer["refused"] == "paused"
    assert contents(folder_of(server.ledger)) == before
    server.ledger.pause(False)
    again = server.ask(terms, 0)[1]
    assert first is not None
    assert again is not None
    assert first.tobytes() == again.tobytes()
    assert server.ask(terms, 1)[1] is not None


def test_a_campaign_that_the_client_left_gets_nothing_more_not_even_a_report(tmp_path: Path) -> None:
    server = HostileServer(tmp_path)
    terms = server.agreed()
    assert server.ask(terms, 0)[1] is not None
    server.ledger.close("x")
    for answer in (
        server.elicit(server.rules()),
        server.offer(terms),
        server.ask(terms, 0)[0],
        server.ask(terms, 1)[0],
    ):
        assert answer["refused"] == "campaign-closed"
    assert server.ledger.statement()[0].payment == terms.payment_for(1)
