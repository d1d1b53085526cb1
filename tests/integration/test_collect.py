"""What is fetched of a thread, against a simulated GitHub over real HTTP."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from bot.github.auth import TokenCredentials
from bot.github.client import GitHub
from bot.github.thread_parts import Moment
from bot.github.uploads import Uploads
from bot.model import Repository
from bot.prompt import attachments
from bot.prompt.attachments import MOST_BYTES, MOST_FILES, Fetched, Source, find_links
from bot.prompt.collect import Collected, collect
from bot.redaction import Redactor
from bot.simulated.github import Person, SimulatedGitHub
from bot.simulated.github import Repository as SimulatedRepository
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Check


async def no_wait(seconds: float) -> None:
    """Read retries wait by the clock; here they do not."""


@dataclass
class Clock:
    """GitHub's clock, which a test moves."""

    now: datetime


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1))


@pytest.fixture
async def simulated(tmp_path: Path, clock: Clock) -> AsyncIterator[SimulatedGitHub]:
    async with SimulatedGitHub.running(tmp_path / "github", lambda: clock.now) as running:
        yield running


@pytest.fixture
async def github(simulated: SimulatedGitHub) -> AsyncIterator[GitHub]:
    async with httpx.AsyncClient() as http:
        yield GitHub(
            api_url=simulated.api_url,
            graphql_url=simulated.graphql_url,
            credentials=TokenCredentials(simulated.bot_token),
            http=http,
            clock=lambda: datetime.now(UTC),
            sleep=no_wait,
        )


@pytest.fixture
async def shop(simulated: SimulatedGitHub) -> SimulatedRepository:
    return await simulated.create_repository("acme/shop", files={"README.md": "# Shop\n", "cart.py": "total = 0\n"})


@pytest.fixture
def maria(simulated: SimulatedGitHub, shop: SimulatedRepository) -> Person:
    maria = simulated.person("maria")
    shop.allow(maria, "write")
    return maria


async def collected(github: GitHub, shop: SimulatedRepository, number: int, moment: Moment | None = None) -> Collected:
    repository = Repository("github", shop.id, shop.owner.login, shop.name)
    found = await collect(github, repository, number, moment or Moment(datetime.now(UTC), bot_id=0))
    assert found is not None
    return found


async def test_an_issue_comes_with_its_comments_labels_milestone_and_pull_requests(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    stranger = simulated.person("stranger")
    issue = await stranger.open_issue(shop, "Wrong total", "It says 0.", labels=["bug"])
    issue.milestone = "1.2"
    for number in range(120):
        await maria.comment(issue, f"comment {number}")
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count", body="Fixes #1")

    found = await collected(github, shop, issue.number)

    thread = found.thread
    assert (thread.title, thread.description.body, thread.labels) == ("Wrong total", "It says 0.", ("bug",))
    assert (thread.milestone, thread.is_public, thread.pull) == ("1.2", False, None)
    assert [text.body for text in thread.comments] == [f"comment {number}" for number in range(120)]
    assert [(one.kind, one.number, one.title) for one in thread.linked] == [("pull", pull.number, "Count")]
    assert found.writers == {maria.id}
    assert thread.missing == ()


async def test_a_pull_request_comes_with_its_diff_reviews_checks_and_the_issue_it_closes(
    github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    await maria.open_issue(shop, "Wrong total", "It says 0.")
    await maria.push(shop, "fix", {"cart.py": "total = 1\n", "new.py": "x\n"}, "Count the items")
    pull = await maria.open_pull(shop, head="fix", title="Count", body="Fixes #1")
    await maria.review(pull, "Two remarks", "changes_requested")
    open_remark = await maria.review_comment(pull, "cart.py", 1, "Why 1?")
    await maria.reply(open_remark, "Because.")
    settled = await maria.review_comment(pull, "new.py", 1, "Rename")
    settled.resolved = True
    shop.report_check(pull.head_sha, Check(1, "lint", "success"))
    shop.report_check(pull.head_sha, Check(2, "tests", "failure", "1 failed", "See the log", "x" * 9000 + "END"))

    found = (await collected(github, shop, pull.number)).thread

    assert found.missing == ()
    assert found.pull is not None
    assert (found.pull.base, found.pull.head, found.pull.head_sha) == ("main", "fix", pull.head_sha)
    assert [commit.subject for commit in found.pull.commits] == ["Count the items"]
    assert [(file.path, file.status, file.additions, file.deletions) for file in found.pull.files] == [
        ("cart.py", "modified", 1, 1),
        ("new.py", "added", 1, 0),
    ]
    assert "+total = 1" in (found.pull.files[0].patch or "")
    [remark] = found.pull.review_threads
    assert (remark.path, remark.line, [text.body for text in remark.comments]) == ("cart.py", 1, ["Why 1?", "Because."])
    [check] = found.failed_checks
    assert (check.name, check.summary) == ("tests", "1 failed\nSee the log")
    assert (check.log[-3:], len(check.log)) == ("END", 4000)
    assert [text.body for text in found.comments] == ["Two remarks"]
    assert [(one.number, one.description.body) for one in found.linked] == [(1, "It says 0.")]


@pytest.mark.parametrize("activity", ["told", "refused"])
async def test_a_pull_request_is_told_as_it_was_at_the_request(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person, clock: Clock, activity: str
) -> None:
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    asked, before = clock.now, pull.head_sha
    clock.now += timedelta(minutes=1)
    await maria.push(shop, "fix", {"cart.py": "total = 2\n"}, "LATE")
    maria.acts.edit_thread(maria.user, pull, title="LATE")
    shop.report_check(before, Check(1, "early", "failure"))
    shop.report_check(pull.head_sha, Check(2, "late", "failure"))
    if activity == "refused":
        simulated.faults.add(FailBefore(404), path="*/activity", times=None)

    found = (await collected(github, shop, pull.number, Moment(asked, simulated.bot.id))).thread
    now = (await collected(github, shop, pull.number, Moment(clock.now, simulated.bot.id))).thread

    assert found.missing == now.missing == ()
    assert found.pull is not None
    assert now.pull is not None
    assert (found.title, found.pull.head_sha, found.pull.pushed_since) == ("Count", before, True)
    assert [commit.subject for commit in found.pull.commits] == ["Count"]
    assert [file.patch for file in found.pull.files] == ["@@ -1 +1 @@\n-total = 0\n+total = 1"]
    assert [check.name for check in found.failed_checks] == ["early"]
    assert (now.title, now.pull.head_sha, now.pull.pushed_since) == ("LATE", pull.head_sha, False)
    assert [commit.subject for commit in now.pull.commits] == ["Count", "LATE"]


async def test_what_the_bot_pushed_after_a_request_that_waited_is_no_news(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person, clock: Clock
) -> None:
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    asked = clock.now
    clock.now += timedelta(minutes=1)
    await maria.push(shop, "fix", {"cart.py": "total = 2\n"}, "Count twice")

    found = (await collected(github, shop, pull.number, Moment(asked, bot_id=maria.id))).thread

    assert found.pull is not None
    assert (found.pull.head_sha, found.pull.pushed_since) == (pull.head_sha, False)


async def test_a_part_that_github_refuses_is_named_and_fails_nothing(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    simulated.faults.add(FailBefore(500), path="*/files", times=None)

    found = (await collected(github, shop, pull.number)).thread

    assert found.missing == ("the changed files",)
    assert found.pull is not None
    assert found.pull.files == ()


async def test_a_person_whose_permission_is_unknown_may_not_write(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "Wrong total", "It says 0.")
    simulated.faults.add(FailBefore(500), path="*/permission", times=None)

    assert (await collected(github, shop, issue.number)).writers == frozenset()


SECRET = "canary-8f2c61d0-77aa"
PNG = b"\x89PNG\r\n\x1a\n rest"


async def attached(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, folder: Path, *sources: Source
) -> Fetched:
    repository = Repository("github", shop.id, shop.owner.login, shop.name)
    uploads = Uploads(simulated.server_url, repository, is_public=not shop.private)
    return await attachments.fetch(
        github, repository, find_links(sources, uploads), uploads, folder, Redactor([SECRET])
    )


def contents(found: Fetched) -> list[bytes]:
    return [Path(one.path).read_bytes() for one in found.saved]


async def test_attachments_are_saved_under_names_of_the_bots_own(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person, tmp_path: Path
) -> None:
    image, log = simulated.upload(PNG, private=True), simulated.upload(b"line\n", "..%20evil.log")
    issue = await maria.open_issue(shop, "Wrong total", f"![]({image})\n\n[log]({log})")

    found = await attached(
        github, simulated, shop, tmp_path, Source("the description", issue.body or "", issue.node_id)
    )

    assert found.left_out == ()
    assert [(Path(one.path).name, one.source) for one in found.saved] == [
        ("image-1.png", "the description"),
        ("file-2.log", "the description"),
    ]
    assert contents(found) == [PNG, b"line\n"]


async def test_a_personal_token_opens_no_file_whose_address_anybody_may_write(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, tmp_path: Path
) -> None:
    # It may belong to any repository that the token opens; the address does not tell.
    theirs = simulated.upload(b"secret", "board.pdf", private=True)

    found = await attached(github, simulated, shop, tmp_path, Source("a comment", f"[see]({theirs})", None))

    assert (found.saved, found.left_out) == ((), ("not found, or not readable with the bot's token",))
    assert all(request.login is None for request in simulated.requests)


async def test_a_known_secret_in_a_file_does_not_reach_the_agent(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, tmp_path: Path
) -> None:
    shop.private = False
    log = simulated.upload(f"before\ntoken={SECRET}\r\nafter é\n".encode(), "build.log")
    image = simulated.upload(PNG + SECRET.encode())

    found = await attached(github, simulated, shop, tmp_path, Source("a comment", f"{log} {image}", None))

    assert contents(found) == ["before\ntoken=[redacted]\r\nafter é\n".encode(), PNG + SECRET.encode()]


async def test_what_is_not_fetched_is_named_with_its_reason(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, tmp_path: Path
) -> None:
    shop.private = False
    elsewhere = simulated.server_url.replace("127.0.0.1", "localhost")
    addresses = [
        simulated.upload(b"x" * (MOST_BYTES + 1), "long.txt"),
        simulated.upload(b"\x7fELF\x02\x01\0\xff", "program.png"),
        simulated.upload(PNG, store_url=elsewhere),
        f"{simulated.server_url}/user-attachments/files/1/gone.txt",
        simulated.upload(b"here", "here.txt"),
    ]

    found = await attached(github, simulated, shop, tmp_path, Source("a comment", " ".join(addresses), None))

    assert contents(found) == [b"here"]
    assert found.left_out == (
        "over 10 MB",
        "of a type that is not taken",
        "GitHub redirected to another host",
        "not found, or not readable with the bot's token",
    )
    assert all(request.login is None for request in simulated.requests), "a public thread needs no token"


async def test_files_beyond_the_limits_are_left_out(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, tmp_path: Path
) -> None:
    shop.private = False
    many = [simulated.upload(b"%d" % number, f"{number}.txt") for number in range(MOST_FILES + 1)]
    large = [simulated.upload(b"x" * 9_000_000, f"{number}.txt") for number in range(4)]

    found = await attached(github, simulated, shop, tmp_path, Source("a comment", " ".join(many), None))
    large_found = await attached(github, simulated, shop, tmp_path, Source("a comment", " ".join(large), None))

    assert (len(found.saved), found.left_out) == (MOST_FILES, ("more than 20",))
    assert (len(large_found.saved), large_found.left_out) == (3, ("over 30 MB in all",))


async def test_a_request_that_ends_while_permissions_are_asked_leaves_no_question_half_asked(
    github: GitHub,
    simulated: SimulatedGitHub,
    shop: SimulatedRepository,
    maria: Person,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issue = await maria.open_issue(shop, "It is wrong")
    await simulated.person("stranger").comment(issue, "I see it too.")

    async def stop(*_: object, **__: object) -> str:
        reading.cancel()  # the question about the second author has not begun
        return "none"

    monkeypatch.setattr(github, "permission", stop)
    reading = asyncio.create_task(collected(github, shop, issue.number))
    with warnings.catch_warnings(record=True) as warned, pytest.raises(asyncio.CancelledError):
        await reading
    assert [str(one.message) for one in warned] == []
