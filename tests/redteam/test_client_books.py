"""Books that were cut, edited, lost or mixed up release nothing, and the file that is wrong is named to their owner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jsam.campaign.client.client_journal import CHAIN, HEAD, adopt
from jsam.campaign.client.client_ledger import ClientLedger
from jsam.campaign.client.client_store import campaign_id
from jsam.campaign.client.policy import Policy
from jsam.campaign.refusal import Reason, Refused
from jsam.errors import InputError, JsamError
from jsam.privacy.chain import Chain, ChainError
from tests.campaign.books import MODEL, ask, contents, noisy, refused
from tests.campaign.offers import offer
from tests.campaign.test_announcement import published

FILES = (
    "releases.jsonl",
    "terms.json",
    "published.json",
    "offers.json",
    "replies/0.sha256",
    "replies/0.model",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Campaigns `a` and `b`, each with two rounds answered, and `c` accepted last."""
    folder = tmp_path_factory.mktemp("whole") / "books"
    ledger = ClientLedger(folder)
    for name in "abc":
        ledger.hear(published(campaign=name))
        ledger.accept(offer(campaign=name))
    for name in "ab":
        for round in range(2):
            ledger.answer(ask(offer(campaign=name), round), noisy, model=MODEL)
    return folder


@pytest.fixture
def books(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "books"))


def campaign(books: Path, name: str = "a") -> Path:
    return books / "campaigns" / campaign_id(name)


def refuses_everything(books: Path, named: str) -> None:
    """No release, no yes, no report, and a line for the owner that names what is wrong."""
    ledger = ClientLedger(books)
    for action in (
        lambda: ledger.answer(ask(offer(campaign="a"), 2), noisy, model=MODEL),
        lambda: ledger.answer(ask(offer(campaign="a"), 0), noisy, model=MODEL),
        lambda: ledger.answer(ask(offer(campaign="c"), 0), noisy, model=MODEL),
        lambda: ledger.accept(offer(campaign="new")),
        lambda: ledger.hear(published(campaign="new")),
        ledger.statement,
    ):
        assert refused(action) is Reason.LEDGER_FAILED
    with pytest.raises(JsamError) as caught:
        ledger.check()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_books_are_read_and_go_on(books: Path) -> None:
    """Otherwise all of the below would prove nothing."""
    ledger = ClientLedger(books)
    ledger.check()
    assert [entry.releases for entry in sorted(ledger.statement(), key=lambda entry: entry.campaign)] == [2, 2, 0]
    ledger.answer(ask(offer(campaign="a"), 2), noisy, model=MODEL)
    ledger.check()


def test_a_lost_terms_file_does_not_forget_what_was_spent(tmp_path: Path) -> None:
    """Four of five ε are spent. With its terms gone the campaign is not unknown: the books are damaged."""
    ledger = ClientLedger(tmp_path, Policy(total_epsilon=5.0))
    first = offer(campaign="first", epsilon=4.0, participations=3)
    ledger.accept(first)
    ledger.answer(ask(first, 0, 3), noisy, model=MODEL)
    assert refused(lambda: ledger.accept(offer(campaign="second", epsilon=4.0))) is Reason.DECLINED
    (campaign(tmp_path, "first") / "terms.json").unlink()
    assert refused(lambda: ledger.accept(offer(campaign="third", epsilon=4.0))) is Reason.LEDGER_FAILED
    with pytest.raises(JsamError, match=r"terms\.json is gone"):
        ledger.check()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ["deleted", "emptied", "flipped", "cut", "of another campaign"])
def test_a_file_of_a_campaign_that_is_not_as_it_was_left(books: Path, file: str, how: str) -> None:
    path = campaign(books) / file
    data = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "flipped":
        path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes((campaign(books, "b") / file).read_bytes())
        if file in ("releases.jsonl", "replies/0.model"):
            return  # the two campaigns have the same there
    if file.startswith("replies") and how != "deleted":
        # What counts of them is what the chain says; their owner is told all the same.
        before = ClientLedger(books).statement()
        assert ClientLedger(books).answer(ask(offer(campaign="a"), 0), noisy, model=MODEL)
        assert ClientLedger(books).statement() == before
        with pytest.raises(JsamError, match=f"{file} was changed"):
            ClientLedger(books).check()
        return
    refuses_everything(books, Path(file).name)


def test_releases_that_were_reordered_cut_or_brought_in_from_another_campaign(books: Path) -> None:
    path = campaign(books) / "releases.jsonl"
    head, first, second = path.read_bytes().splitlines(keepends=True)
    other = first.replace(b'"round":0', b'"round":5')
    for lines in ((head, second, first), (head, first), (head, second), (head,), (head, first, second, other)):
        path.write_bytes(b"".join(lines))
        refuses_everything(books, "releases.jsonl")


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_whole_campaign_that_was_deleted_is_missed(books: Path, name: str) -> None:
    shutil.rmtree(campaign(books, name))
    refuses_everything(books, campaign_id(name))


def test_campaigns_that_were_swapped_or_brought_in_are_noticed(books: Path) -> None:
    """As whole folders: `a` for `b`, and one from another client."""
    shutil.copytree(campaign(books), books.parent / "kept")
    campaign(books, "b").rename(books.parent / "other")
    campaign(books).rename(campaign(books, "b"))
    (books.parent / "other").rename(campaign(books))
    refuses_everything(books, "")
    shutil.rmtree(campaign(books))
    shutil.rmtree(campaign(books, "b"))
    shutil.copytree(books.parent / "kept", campaign(books, "foreign"))
    refuses_everything(books, campaign_id("foreign"))


def test_a_campaign_set_back_to_an_earlier_copy_is_noticed(tmp_path: Path) -> None:
    ledger, terms = ClientLedger(tmp_path / "books"), offer()
    ledger.accept(terms)
    ledger.answer(ask(terms, 0), noisy, model=MODEL)
    own = campaign(tmp_path / "books", terms.campaign)
    shutil.copytree(own, tmp_path / "earlier")
    ledger.answer(ask(terms, 1), noisy, model=MODEL)
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "earlier", own)
    assert refused(lambda: ledger.answer(ask(terms, 1), noisy, model=MODEL)) is Reason.LEDGER_FAILED


CHAIN_DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "the last line cut": lambda lines: lines[:-1],
    "the last two lines cut": lambda lines: lines[:-2],
    "a line in the middle left out": lambda lines: lines[:4] + lines[5:],
    "two lines swapped": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "a line twice": lambda lines: [*lines[:5], *lines[4:]],
    "a line edited": lambda lines: [*lines[:4], lines[4].replace(b"0", b"1"), *lines[5:]],
    "the last line edited": lambda lines: [*lines[:-1], lines[-1].replace(b"files", b"filez")],
    "a line that is none": lambda lines: [*lines[:4], b"{}\n", *lines[5:]],
    "all lines gone": lambda lines: lines[:1],
    "the first line gone": lambda lines: lines[1:],
    "an empty file": lambda lines: [],
}


@pytest.mark.parametrize("how", CHAIN_DAMAGE)
def test_a_chain_that_was_changed_is_named(books: Path, how: str) -> None:
    path = books / CHAIN
    path.write_bytes(b"".join(CHAIN_DAMAGE[how](path.read_bytes().splitlines(keepends=True))))
    refuses_everything(books, CHAIN)


@pytest.mark.parametrize("file", [CHAIN, HEAD])
def test_a_chain_or_a_head_that_is_gone_is_named(books: Path, file: str) -> None:
    (books / file).unlink()
    refuses_everything(books, file)


def test_with_chain_and_head_gone_the_campaigns_are_not_forgotten(books: Path) -> None:
    (books / CHAIN).unlink()
    (books / HEAD).unlink()
    refuses_everything(books, "--adopt-ledger")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 200_000, '{"count": true, "hash": ""}', '{"count": -1, "hash": ""}']
)
def test_a_head_that_is_none_is_named(books: Path, text: str) -> None:
    (books / HEAD).write_text(text)
    refuses_everything(books, HEAD)


def test_chain_and_head_set_back_together_do_not_fit_the_campaigns(tmp_path: Path) -> None:
    ledger, terms = ClientLedger(tmp_path / "books"), offer()
    ledger.accept(terms)
    earlier = {name: (tmp_path / "books" / name).read_bytes() for name in (CHAIN, HEAD)}
    ledger.answer(ask(terms, 0), noisy, model=MODEL)
    for name, data in earlier.items():
        (tmp_path / "books" / name).write_bytes(data)
    assert refused(lambda: ledger.answer(ask(terms, 1), noisy, model=MODEL)) is Reason.LEDGER_FAILED


def test_a_chain_forged_anew_with_its_head_does_not_fit_the_campaigns(books: Path) -> None:
    """Somebody who can compute hashes leaves the releases out of chain and head; the campaigns still have them."""
    kept = [record for record in Chain(books / CHAIN, books / HEAD).records if "release" not in record]
    for name in (CHAIN, HEAD):
        (books / name).unlink()
    forged = Chain(books / CHAIN, books / HEAD)
    for record in kept:
        forged.append(record)
    refuses_everything(books, "replies/0.model is not of these books")


def test_an_entry_that_reaches_out_of_the_books_is_no_entry(tmp_path: Path) -> None:
    for record in (
        {"campaign": "../../etc", "files": {}},
        {"campaign": "a" * 32, "files": {"../x": ""}},
        {"campaign": "a" * 32, "files": {"replies/../../../x.model": ""}},
        {"campaign": "a" * 32, "files": {"terms.json": 3}},
        {"campaign": "a" * 32},
    ):
        books = tmp_path / str(len(list(tmp_path.iterdir())))
        books.mkdir()
        Chain(books / CHAIN, books / HEAD).append(record)
        with pytest.raises(JsamError, match="is no entry of a client's books"):
            ClientLedger(books).check()


def test_honest_kills_of_an_append_are_told_from_damage(books: Path) -> None:
    """A torn line was never written; a head that is one line behind is brought up; both behind is a cut."""
    chain, head = books / CHAIN, books / HEAD
    before = ClientLedger(books).statement()
    lines = chain.read_bytes().splitlines(keepends=True)
    chain.write_bytes(chain.read_bytes() + lines[-1][:30])
    assert ClientLedger(books).statement() == before
    ledger, terms = ClientLedger(books), offer(campaign="a")
    old_head = head.read_bytes()
    ledger.hear(published(campaign="d"))
    head.write_bytes(old_head)
    ledger.check()
    ledger.answer(ask(terms, 2), noisy, model=MODEL)
    ledger.check()
    head.write_bytes(old_head)
    with pytest.raises(ChainError, match=HEAD):
        ledger.check()


def test_the_last_entry_counts_also_where_a_kill_left_its_files_behind(books: Path) -> None:
    """The release is in the chain and not in its own file: it is spent, and the file is brought up."""
    ledger, terms = ClientLedger(books), offer(campaign="a")
    path = campaign(books) / "releases.jsonl"
    earlier = path.read_bytes()

    def die(_: object) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.answer(ask(terms, 2), die, model=MODEL)
    path.write_bytes(earlier)
    (campaign(books) / "replies" / "2.model").unlink()
    (entry,) = [entry for entry in ledger.statement() if entry.campaign == "a"]
    assert entry.releases == 3
    ledger.answer(ask(terms, 2), noisy, model=MODEL)
    assert path.read_bytes().startswith(earlier)
    assert path.read_bytes() != earlier
    ledger.check()


def test_books_of_an_earlier_version_are_read_on_their_owners_word(books: Path) -> None:
    """They have the same files and no chain. Adopted, they say what they said before, and are guarded from then on."""
    before, files = ClientLedger(books).statement(), contents(books / "campaigns")
    for name in (CHAIN, HEAD):
        (books / name).unlink()
    assert adopt(books) == 3
    assert ClientLedger(books).statement() == before
    assert contents(books / "campaigns") == files
    with pytest.raises(InputError, match="need not be adopted"):
        adopt(books)
    (campaign(books) / "terms.json").unlink()
    refuses_everything(books, "terms.json")


@pytest.mark.parametrize("file", ["terms.json", "releases.jsonl"])
def test_books_that_are_seen_to_be_damaged_are_not_adopted(books: Path, file: str) -> None:
    for name in (CHAIN, HEAD):
        (books / name).unlink()
    (campaign(books) / file).unlink()
    with pytest.raises(InputError, match=file.replace(".", r"\.")):
        adopt(books)
    with pytest.raises(Refused):
        ClientLedger(books).statement()


def test_an_adoption_that_was_interrupted_is_begun_anew(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ClientLedger(books).statement()
    for name in (CHAIN, HEAD):
        (books / name).unlink()
    real, count = Chain.append, 0

    def append(self: Chain, record: dict[str, object]) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        real(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "append", append)
        with pytest.raises(KeyboardInterrupt):
            adopt(books)
    refuses_everything(books, "--adopt-ledger")
    assert adopt(books) == 3
    assert ClientLedger(books).statement() == before


def test_a_line_break_in_what_was_published_stays_what_it_was(tmp_path: Path) -> None:
    ledger = ClientLedger(tmp_path)
    ledger.hear(json.dumps(json.loads(published()), indent=1).replace("\n", "\r\n"))
    ledger.check()
    ledger.hear(published())
