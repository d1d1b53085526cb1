"""What is fetched of a thread, against a simulated GitHub over real HTTP."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from bot.github import checks, thread_parts
from bot.github.auth import TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import NotFound
from bot.github.thread import Gaps
from bot.github.thread_parts import Moment
from bot.github.uploads import Uploads
from bot.model import Repository
from bot.prompt import attachments
from bot.prompt import collect as collecting
from bot.prompt.attachments import MOST_BYTES, MOST_FILES, Fetched, Source, find_links
from bot.prompt.collect import Collected, collect
from bot.redaction import Redactor
from bot.simulated.github import Person, SimulatedGitHub, rest_pulls
from bot.simulated.github import Repository as SimulatedRepository
from bot.simulated.github.faults import FailBefore, GraphQLError
from bot.simulated.github.model import Check, Label, Pull, Push


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


def ours(shop: SimulatedRepository) -> Repository:
    return Repository("github", shop.id, shop.owner.login, shop.name)


async def collected(github: GitHub, shop: SimulatedRepository, number: int, moment: Moment | None = None) -> Collected:
    found = await collect(github, ours(shop), number, moment or Moment(datetime.now(UTC), bot_id=0))
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


@pytest.fixture
async def long_pull(shop: SimulatedRepository, maria: Person) -> Pull:
    """Return a pull request of which each list has more than a page."""
    for number in range(25):
        await maria.open_issue(shop, f"Issue {number}")
    await maria.push(shop, "fix", {f"{name}.py": "x\n" for name in "abcd"}, "commit 0")
    log = await shop.git.run("rev-parse", "refs/heads/fix")
    commits = [
        f"commit refs/heads/fix\ncommitter maria <m@x> {1700000000 + number} +0000\ndata <<.\ncommit {number}\n.\n"
        for number in range(1, 230)
    ]
    commits[0] += f"from {log}\n"
    await shop.git.run("fast-import", "--quiet", stdin="\n".join(commits).encode())
    body = "\n".join(f"Fixes #{number}" for number in range(1, 26))
    pull = await maria.open_pull(shop, head="fix", title="Long", body=body)
    pull.labels = [Label(number, f"label {number}") for number in range(100)]
    for number in range(230):
        await maria.comment(pull, f"comment {number}")
        await maria.review_comment(pull, "a.py", 1, f"thread {number}")
    for number in range(1, 230):
        await maria.reply(pull.review_comments[0], f"remark {number}")
    shop.checks[pull.head_sha] = [Check(number, f"check {number}", "failure") for number in range(230)]
    shop.statuses[pull.head_sha] = {f"status {number}": "failure" for number in range(230)}
    return pull


async def test_every_list_is_read_to_its_end(github: GitHub, shop: SimulatedRepository, long_pull: Pull) -> None:
    found = (await collected(github, shop, long_pull.number)).thread
    assert (found.missing, found.pull is not None) == ((), True)
    assert found.pull is not None
    remarks, *_ = found.pull.review_threads
    assert {
        "comments": [text.body for text in found.comments] == [f"comment {number}" for number in range(230)],
        "commits": [one.subject for one in found.pull.commits] == [f"commit {number}" for number in range(230)],
        "threads": [one.comments[0].body for one in found.pull.review_threads[1:]]
        == [f"thread {number}" for number in range(1, 230)],
        "remarks": [one.body for one in remarks.comments[1:]] == [f"remark {number}" for number in range(1, 230)],
        "labels": len(found.labels) == 100,
        "files": len(found.pull.files) == 4,
        "checks": len(found.failed_checks) == 460,
    } == dict.fromkeys(("comments", "commits", "threads", "remarks", "labels", "files", "checks"), True)
    assert found.cut == ("5 of the 25 issues that it closes", "227 of the 230 logs of failing checks")


async def test_what_is_cut_at_a_limit_is_named(
    github: GitHub, shop: SimulatedRepository, long_pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page is read where a thousand items are, and GitHub lists few files."""
    monkeypatch.setattr(thread_parts, "MOST_PAGES", 1)
    monkeypatch.setattr(checks, "_MOST_PAGES", 1)
    monkeypatch.setattr(thread_parts, "MOST_FILES", 3)
    monkeypatch.setattr(rest_pulls, "MOST_FILES", 3)
    monkeypatch.setattr(collecting, "MOST_AUTHORS", 0)
    long_pull.labels.append(Label(101, "one more"))

    found = (await collected(github, shop, long_pull.number)).thread

    shop.statuses.clear()
    assert (await checks.read_checks(github, ours(shop), long_pull.head_sha)).is_part
    assert found.missing == ()
    assert sorted(found.cut) == [
        "1 of the 1 permissions of authors",
        "1 of the 101 labels",
        "130 of the 230 checks",
        "130 of the 230 review threads",
        "130 of the 230 statuses",
        "30 of the 230 comments",
        "30 of the 230 commits",
        "359 of the 459 reviews",
        "5 of the 25 issues that it closes",
        "97 of the 100 logs of failing checks",
        "the changed files after the first 3",
    ]


async def test_a_comparison_that_github_cuts_is_named(
    github: GitHub, shop: SimulatedRepository, maria: Person, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_parts, "MOST_COMPARED", 3)
    monkeypatch.setattr(rest_pulls, "MOST_COMPARED", 3)
    await maria.push(shop, "fix", {f"{number}.py": "x\n" for number in range(4)}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    asked = Moment(clock.now, bot_id=0)
    clock.now += timedelta(minutes=1)
    await maria.push(shop, "fix", {"late.py": "x\n"}, "LATE")

    now, then = (await collected(github, shop, pull.number)).thread, await collected(github, shop, pull.number, asked)

    assert then.thread.pull is not None
    assert [one.path for one in then.thread.pull.files] == ["0.py", "1.py", "2.py"]
    assert (now.cut, then.thread.cut) == ((), ("the changed files after the first 3",))


async def test_the_head_at_the_request_is_found_behind_more_pushes_than_a_page(
    github: GitHub, shop: SimulatedRepository, maria: Person, clock: Clock
) -> None:
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    asked, before = Moment(clock.now, bot_id=0), pull.head_sha
    clock.now += timedelta(minutes=1)
    await maria.push(shop, "fix", {"cart.py": "total = 2\n"}, "LATE")
    again = Push("refs/heads/fix", pull.head_sha, pull.head_sha, maria.user, clock.now)
    shop.pushes += [again] * 120

    found = (await collected(github, shop, pull.number, asked)).thread

    assert found.pull is not None
    assert (found.pull.head_sha, [one.subject for one in found.pull.commits]) == (before, ["Count"])


async def test_workflows_that_a_fine_grained_token_does_not_look_into_are_counted() -> None:
    class Actions:
        """GitHub as such a token sees it: the commit has 25 workflow runs with a job each."""

        async def get(self, _: Repository, path: str, **of: str) -> dict[str, Any]:
            if "jobs" in path:
                job = {"id": of["run"], "name": f"job {of['run']}", "status": "completed", "conclusion": "failure"}
                return {"total_count": 1, "jobs": [job]}
            if "actions/runs" not in path:
                raise NotFound("no such right")
            runs = [{"id": number, "status": "completed"} for number in range(25)]
            return {"total_count": 25, "workflow_runs": runs}

        async def get_if_there(self, *_: object, **__: object) -> None:
            return None

        async def get_end_of_text(self, *_: object, **__: object) -> str:
            return "the end of a log"

    github, gaps = cast("GitHub", Actions()), Gaps()
    repository = Repository("github", 1, "acme", "shop")
    assert len(await checks.read_failed_checks(github, repository, "abc", gaps)) == 20
    assert gaps.cut == ["5 of the 25 checks", "17 of the 20 logs of failing checks"]


GONE = ("repository", "issueOrPullRequest")
TITLE, LINKED = "the title at the time of the request", "closedByPullRequestsReferences"


@pytest.mark.parametrize(
    ("path", "kind", "missing", "cut", "comments"),
    [
        ((*GONE, "comments", "nodes", 1), "FORBIDDEN", (), ("1 of the 3 comments",), ["one", "three"]),
        ((*GONE, "comments", "nodes", 1), None, ("1 of the 3 comments",), (), ["one", "three"]),
        # A comment whose edits are not known could be one that was never edited.
        ((*GONE, "comments", "nodes", 0, "lastEditedAt"), "FORBIDDEN", (), ("1 of the 3 comments",), ["two", "three"]),
        ((*GONE, "labels"), "FORBIDDEN", (), ("the labels",), ["one", "two", "three"]),
        ((*GONE, "author"), "NOT_FOUND", (), ("the name of its author",), ["one", "two", "three"]),
        ((*GONE, "timelineItems", "nodes", 0), "FORBIDDEN", (), (TITLE,), ["one", "two", "three"]),
        (
            (*GONE, "closedByPullRequestsReferences"),
            None,
            ("the pull requests that close it",),
            (),
            ["one", "two", "three"],
        ),
    ],
)
async def test_what_an_error_names_is_named_and_the_rest_is_told(
    simulated: SimulatedGitHub,
    github: GitHub,
    shop: SimulatedRepository,
    maria: Person,
    path: tuple[str | int, ...],
    kind: str | None,
    missing: tuple[str, ...],
    cut: tuple[str, ...],
    comments: list[str],
) -> None:
    issue = await maria.open_issue(shop, "Wrong total", "It says 0.", labels=["bug"])
    maria.acts.edit_thread(maria.user, issue, title="Wrong sum")
    for text in ("one", "two", "three"):
        await maria.comment(issue, text)
    simulated.faults.add(GraphQLError("no", kind, path), path="/graphql")

    found = (await collected(github, shop, issue.number)).thread

    assert (found.missing, found.cut) == (missing, cut)
    assert [text.body for text in found.comments] == comments


@pytest.mark.parametrize("field", ["title", "lastEditedAt", "createdAt"])
async def test_a_thread_that_is_known_in_part_is_not_told(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person, field: str
) -> None:
    issue = await maria.open_issue(shop, "Wrong total", "It says 0.")
    simulated.faults.add(GraphQLError("no", "FORBIDDEN", (*GONE, field)), path="/graphql", times=None)
    assert await collect(github, ours(shop), issue.number, Moment(datetime.now(UTC), bot_id=0)) is None


async def test_a_review_thread_of_which_a_page_is_away_is_told_and_one_without_its_begin_is_not(
    simulated: SimulatedGitHub, github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    first = await maria.review_comment(pull, "cart.py", 1, "first")
    for number in range(60):
        await maria.reply(first, f"reply {number}")
    await maria.review_comment(pull, "cart.py", 1, "second")
    threads = ("repository", "pullRequest", "reviewThreads", "nodes")
    simulated.faults.add(GraphQLError("no", None, ("node", "comments")), path="/graphql", times=None)
    found = (await collected(github, shop, pull.number)).thread
    assert found.pull is not None
    assert [len(one.comments) for one in found.pull.review_threads] == [50, 1]
    assert [bool(one.id) for one in found.pull.review_threads] == [False, True], "a part is not resolved"
    assert (found.missing, found.cut) == (("11 of the 61 comments of a review thread",), ())

    simulated.faults.clear()
    gone = (*threads, 1, "comments", "nodes", 0)
    simulated.faults.add(GraphQLError("no", "FORBIDDEN", gone), path="/graphql", times=None)
    found = (await collected(github, shop, pull.number)).thread
    assert found.pull is not None
    assert [len(one.comments) for one in found.pull.review_threads] == [61]
    assert found.cut == ("a review thread whose first comment is not shown",)


async def test_what_people_have_hidden_is_known_of_all_kinds_of_comments(
    github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    await maria.push(shop, "fix", {"cart.py": "total = 1\n"}, "Count")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    await maria.comment(pull, "shown")
    await maria.hide(await maria.comment(pull, "HIDDEN comment"))
    await maria.hide(await maria.review(pull, "HIDDEN review"))
    remark = await maria.review_comment(pull, "cart.py", 1, "shown")
    await maria.hide(await maria.reply(remark, "HIDDEN remark"))

    found = (await collected(github, shop, pull.number)).thread

    assert found.pull is not None
    texts = [*found.comments, *found.pull.review_threads[0].comments]
    assert [text.is_hidden for text in texts] == ["HIDDEN" in text.body for text in texts]
    assert sum(text.is_hidden for text in texts) == 3


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
