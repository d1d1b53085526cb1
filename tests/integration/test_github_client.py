"""The GitHub client against a simulated GitHub over real HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from bot.github import transport
from bot.github.auth import AppCredentials, Credentials, TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import NotFound, Refused, Transient, Unauthenticated, classify
from bot.model import Actor, Repository, Target
from bot.simulated.github import Person, SimulatedGitHub
from bot.simulated.github import Repository as SimulatedRepository
from bot.simulated.github.faults import (
    DropBefore,
    FailAfter,
    FailBefore,
    Fault,
    GraphQLError,
    PrimaryRateLimit,
    SecondaryRateLimit,
    Trickle,
)
from bot.thread.authority import NOT_CHOSEN, NOT_LISTED, Allowed, Policy
from bot.turn.may_ask import may_ask

INSTALLATION = 77
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOBODY = Actor("nobody-at-all", 1)


@dataclass
class Time:
    """A clock that only sleeps move."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


@pytest.fixture
async def simulated(tmp_path: Path, time: Time) -> AsyncIterator[SimulatedGitHub]:
    async with SimulatedGitHub.running(tmp_path / "github", time) as running:
        yield running


@pytest.fixture
async def simulated_app(tmp_path: Path, time: Time) -> AsyncIterator[SimulatedGitHub]:
    async with SimulatedGitHub.running(tmp_path / "github", time, installation_id=INSTALLATION) as running:
        yield running


@pytest.fixture
async def shop(simulated: SimulatedGitHub) -> SimulatedRepository:
    return await simulated.create_repository("acme/shop")


@pytest.fixture
def maria(simulated: SimulatedGitHub, shop: SimulatedRepository) -> Person:
    maria = simulated.person("maria")
    shop.allow(maria, "write")
    return maria


@pytest.fixture
def github(simulated: SimulatedGitHub, http: httpx.AsyncClient, time: Time) -> GitHub:
    return client(simulated, http, time, TokenCredentials(simulated.bot_token))


def client(simulated: SimulatedGitHub, http: httpx.AsyncClient, time: Time, credentials: Credentials) -> GitHub:
    return GitHub(
        api_url=simulated.api_url,
        graphql_url=simulated.graphql_url,
        credentials=credentials,
        http=http,
        clock=time,
        sleep=time.sleep,
    )


def someone(simulated: SimulatedGitHub, login: str) -> Actor:
    user = simulated.person(login).user
    return Actor(user.login, user.id)


def ours(repository: SimulatedRepository, installation_id: int | None = None) -> Repository:
    owner = repository.owner.login
    return Repository("github.example", repository.id, owner, repository.name, installation_id=installation_id)


async def test_the_token_identifies_the_bot(github: GitHub, simulated: SimulatedGitHub) -> None:
    with capture_logs() as logs:
        identity = await github.identity()
        assert (identity.login, identity.id, identity.mention) == (
            simulated.bot.login,
            simulated.bot.id,
            identity.login,
        )
    levels = {line["log_level"] for line in logs if line["event"] == "github-request"}
    assert levels == {"debug"}, "a turn makes a dozen of them"


async def test_a_permission_is_returned_as_github_has_it(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    for permission in ["admin", "maintain", "write", "triage", "read"]:
        shop.allow(simulated.person("zoe"), permission)  # type: ignore[arg-type]
        assert await github.permission(ours(shop), someone(simulated, "zoe")) == (permission, "zoe")


async def test_an_account_without_access_has_no_permission(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    assert await github.permission(ours(shop), NOBODY) == ("none", NOBODY.login)
    shop.allow(simulated.person("zoe"), "admin")
    theirs = replace(someone(simulated, "zoe"), id=someone(simulated, "olaf").id)
    assert await github.permission(ours(shop), theirs) == ("none", "olaf"), "the login is another account's"
    assert await github.permission(ours(shop), replace(theirs, id=1)) == ("none", "zoe"), "there is no such account"


async def test_a_list_of_people_is_read_with_the_login_that_github_has_for_the_account(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    zoe, olaf = someone(simulated, "zoe"), someone(simulated, "olaf")
    for person in (zoe, olaf):
        shop.allow(simulated.person(person.login), "write")
    policy = Policy(99, "bot", "bot", "threadtree", allowed_users=("zoe",))
    assert await may_ask(github, policy, zoe, ours(shop)) == Allowed("write")
    assert await may_ask(github, policy, replace(olaf, login="zoe"), ours(shop)) == NOT_LISTED
    policy, posing = replace(policy, allowed_users=()), replace(olaf, login="zoe")
    assert await may_ask(github, policy, posing, ours(shop), allowed=["zoe"]) == NOT_CHOSEN
    assert await may_ask(github, policy, posing, ours(shop), allowed=["olaf"]) == Allowed("write")


async def test_a_person_who_renamed_the_account_keeps_what_they_may(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    zoe = someone(simulated, "zoe")
    shop.allow(simulated.person("zoe"), "write")
    simulated.world.rename_user(simulated.world.user("zoe"), "zoe-2")
    assert await github.permission(ours(shop), zoe) == ("write", "zoe-2")
    shop.allow(simulated.person("zoe"), "admin")  # another account has the old name
    assert await github.permission(ours(shop), zoe) == ("write", "zoe-2")


async def test_a_permission_that_a_new_token_is_denied_is_asked_for_twice(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    repository = await simulated_app.create_repository("acme/shop")
    repository.allow(simulated_app.person("maria"), "write")
    simulated_app.faults.add(FailBefore(404, "Not Found"), path="*/permission")
    github = client(simulated_app, http, time, app_of(simulated_app))
    maria = someone(simulated_app, "maria")
    assert await github.permission(ours(repository, INSTALLATION), maria) == ("write", "maria")


@pytest.mark.parametrize(
    ("whose", "permission"),
    [
        ({}, "write"),
        ({"user": {"login": NOBODY.login}}, "write"),
        ({"user": None}, "none"),
        ({"user": {"id": 2}}, "none"),
    ],
)
async def test_a_permission_counts_for_the_account_that_the_answer_is_about(
    simulated: SimulatedGitHub, shop: SimulatedRepository, time: Time, whose: dict[str, object], permission: str
) -> None:
    there = {"id": shop.id, "owner": {"login": "acme"}, "name": "shop", "default_branch": "main"}
    said = {"permission": "write", **whose, **there, "login": NOBODY.login}
    answering = httpx.MockTransport(lambda _: httpx.Response(200, json=said))
    async with httpx.AsyncClient(transport=answering) as http:
        github = client(simulated, http, time, TokenCredentials(simulated.bot_token))
        assert await github.permission(ours(shop), NOBODY) == (permission, NOBODY.login)


async def test_a_repository_that_the_bot_does_not_see_says_nothing_about_a_person(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    simulated.faults.add(FailBefore(404, "Not Found"), times=None)
    with pytest.raises(NotFound, match="acme/shop was deleted, or the bot may not see it"):
        await github.permission(ours(shop), NOBODY)


async def test_a_permission_that_cannot_be_asked_is_an_error(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    simulated.faults.add(FailBefore(500), times=None)
    with pytest.raises(Transient):
        await github.permission(ours(shop), NOBODY)


async def test_a_pull_request_is_read_with_what_it_closes(
    github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    await maria.push(shop, "topic", {"a.txt": "a\n"}, "Add a")
    pull = await maria.open_pull(shop, head="topic", title="Repair", body=f"Fixes #{issue.number}")
    facts = await github.pull(ours(shop), pull.number)
    assert (facts.head_ref, facts.head_sha, facts.head_repository_id) == ("topic", pull.head_sha, shop.id)
    assert facts.default_branch == "main"
    assert await github.closing_issues(ours(shop), pull.number) == (issue.number,)
    with pytest.raises(NotFound, match="acme/shop is another repository by now"):
        await github.closing_issues(replace(ours(shop), id=shop.id + 1), pull.number)


async def test_every_page_of_closed_issues_is_read(github: GitHub, shop: SimulatedRepository, maria: Person) -> None:
    issues = [await maria.open_issue(shop, f"Issue {number}") for number in range(103)]
    await maria.push(shop, "topic", {"a.txt": "a\n"}, "Add a")
    body = "\n".join(f"Fixes #{issue.number}" for issue in issues)
    pull = await maria.open_pull(shop, head="topic", title="Repair all", body=body)
    found = await github.closing_issues(ours(shop), pull.number)
    assert set(found) == {issue.number for issue in issues}


async def test_a_repository_and_its_threads_are_found_by_name(
    github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    found = await github.repository("github.example", "ACME", "shop")
    assert (found.id, found.full_name, found.default_branch) == (shop.id, "acme/shop", "main")
    with pytest.raises(NotFound):
        await github.repository("github.example", "acme", "nothing")
    issue = await maria.open_issue(shop, "It breaks")
    await maria.push(shop, "topic", {"a.txt": "a\n"}, "Add a")
    pull = await maria.open_pull(shop, head="topic", title="Repair", body="")
    told = [await github.thread(ours(shop), thread.number) for thread in (issue, pull)]
    assert [(one.kind, one.title, one.closed_at) for one in told] == [
        ("issue", "It breaks", None),
        ("pull", "Repair", None),
    ]
    with pytest.raises(NotFound):
        await github.thread(ours(shop), 4711)


async def test_a_repository_of_an_app_comes_with_its_installation(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    await simulated_app.create_repository("acme/shop")
    found = await client(simulated_app, http, time, app_of(simulated_app)).repository("github.example", "acme", "shop")
    assert found.installation_id == INSTALLATION


async def test_the_last_merged_head_of_a_branch_is_known(
    github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    assert await github.merged_head(ours(shop), "topic") is None
    heads: list[str] = []
    for text in ("a", "b"):
        await maria.push(shop, "topic", {f"{text}.txt": text}, f"Add {text}")
        pull = await maria.open_pull(shop, head="topic", title=text, body="")
        assert await github.merged_head(ours(shop), "topic") == (heads[-1] if heads else None)
        heads.append(pull.head_sha)
        await maria.merge(pull)
        assert await github.merged_head(ours(shop), "topic") == heads[-1]


async def test_an_error_inside_a_graphql_answer_is_an_error(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub
) -> None:
    simulated.faults.add(GraphQLError(), path="/graphql", times=None)
    with pytest.raises(Transient, match="Something went wrong"):
        await github.closing_issues(ours(shop), 1)
    simulated.faults.clear()
    simulated.faults.add(FailBefore(200, "an answer of something on the way"), path="/graphql", times=None)
    with pytest.raises(Transient, match="no data"):
        await github.closing_issues(ours(shop), 1)
    simulated.faults.clear()
    with pytest.raises(NotFound):
        await github.closing_issues(ours(shop), 4711)


async def test_a_branch_is_protected_by_what_forbids_a_plain_push_alone(
    github: GitHub, shop: SimulatedRepository, maria: Person, simulated: SimulatedGitHub
) -> None:
    await maria.push(shop, "release/1.0", {"a.txt": "a\n"}, "Add a")
    shop.protect("release/1.0")
    assert await github.is_protected(ours(shop), "release/1.0")
    assert not await github.is_protected(ours(shop), "main")
    assert not await github.is_protected(ours(shop), "no/such")
    for forbids_nothing in ("deletion", "non_fast_forward", "branch_name_pattern", "creation"):
        shop.rule(forbids_nothing)
        assert not await github.is_protected(ours(shop), "main"), forbids_nothing
    assert await github.is_protected(ours(shop), "release/1.0"), "the classic rule counts beside the others"
    for forbids in ("update", "pull_request", "merge_queue"):
        shop.rule(forbids, f"{forbids}/*")
        assert await github.is_protected(ours(shop), f"{forbids}/new"), forbids


@pytest.mark.parametrize("status", [403, 404])
async def test_where_github_does_not_tell_its_rules_the_classic_answer_has_to_do(
    github: GitHub, shop: SimulatedRepository, maria: Person, simulated: SimulatedGitHub, time: Time, status: int
) -> None:
    await maria.push(shop, "release", {"a.txt": "a\n"}, "Add a")
    shop.protect("release")
    await github.thread(ours(shop), (await maria.open_issue(shop, "One")).number)
    time.now += timedelta(minutes=1)
    simulated.faults.add(FailBefore(status, "{}"), path="*/rules/branches/*", times=None)
    assert await github.branch_rules(ours(shop), "release") == {"protected"}
    assert await github.branch_rules(ours(shop), "main") == frozenset()


async def test_a_comment_is_posted_edited_and_found_by_its_marker(
    github: GitHub, shop: SimulatedRepository, maria: Person, time: Time
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    marker, target, since = "<!-- m -->", Target("issue"), time.now - timedelta(minutes=1)
    await maria.comment(issue, f"Forged. {marker}")
    for number in range(120):
        await maria.comment(issue, f"Filler {number}")
    assert await github.find_comment(ours(shop), issue.number, target, marker, since) is None
    posted = await github.create_comment(ours(shop), issue.number, target, f"One {marker}")
    await github.edit_comment(ours(shop), target, posted.id, f"Two {marker}")
    found = await github.find_comment(ours(shop), issue.number, target, marker, since)
    assert found is not None
    assert (found.id, found.body) == (posted.id, f"Two {marker}")


async def test_an_answer_to_an_inline_comment_goes_into_its_thread_even_when_asked_in_a_reply(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, maria: Person
) -> None:
    await maria.push(shop, "topic", {"a.txt": "a\n"}, "Add a")
    pull = await maria.open_pull(shop, head="topic", title="Repair")
    first = await maria.review_comment(pull, "a.txt", 1, "Why?")
    second = await maria.reply(first, "@bot why?")
    posted = await github.create_comment(ours(shop), pull.number, Target("review-comment", second.id), "Because.")
    (answer,) = [comment for comment in pull.review_comments if comment.id == posted.id]
    assert answer.in_reply_to is first
    assert any(request.path.endswith(f"/comments/{first.id}/replies") for request in simulated.requests)
    edited = await github.edit_comment(ours(shop), Target("review-comment", second.id), posted.id, "Since.")
    assert edited.body == "Since."


async def test_reacting_twice_reacts_once_and_everything_can_be_reacted_to(
    github: GitHub, shop: SimulatedRepository, maria: Person, simulated: SimulatedGitHub
) -> None:
    await maria.push(shop, "topic", {"a.txt": "a\n"}, "Add a")
    pull = await maria.open_pull(shop, head="topic", title="Repair")
    comment = await maria.comment(pull, "@bot go")
    inline = await maria.review_comment(pull, "a.txt", 1, "@bot go")
    review = await maria.review(pull, "@bot go", comments=[])
    targets = [Target("comment", comment.id), Target("review-comment", inline.id), Target("review", review.id)]
    for target in (*targets, Target("pull")):
        for _ in range(2):
            await github.react(ours(shop), pull.number, target, "eyes")
    assert [reaction.content for reaction in comment.reactions] == ["eyes"]
    assert [reaction.content for reaction in inline.reactions] == ["eyes"]
    assert [reaction.content for reaction in review.reactions] == ["eyes"]
    assert pull.reactions_by(simulated.bot) == ["eyes"]


async def test_the_inline_comments_of_a_review_are_read(
    github: GitHub, shop: SimulatedRepository, maria: Person
) -> None:
    await maria.push(shop, "topic", {"a.txt": "a\n"}, "Add a")
    pull = await maria.open_pull(shop, head="topic", title="Repair")
    review = await maria.review(pull, "@bot see below", comments=[("a.txt", 1, "This one")])
    await maria.review_comment(pull, "a.txt", 1, "Not of that review")
    (comment,) = await github.review_comments(ours(shop), pull.number, review.id)
    assert (comment.path, comment.body) == ("a.txt", "This one")
    assert comment.author is not None
    assert comment.author.login == "maria"


async def one_read(github: GitHub, repository: Repository) -> None:
    """Make one request."""
    await github.get(repository, "/branches/{branch}", branch="main")


async def test_the_comments_of_a_review_that_is_gone_are_none(github: GitHub, shop: SimulatedRepository) -> None:
    assert await github.review_comments(ours(shop), 1, 4711) == ()


async def test_reads_survive_a_broken_gateway_and_a_dropped_connection(
    github: GitHub, shop: SimulatedRepository, simulated: SimulatedGitHub, time: Time
) -> None:
    simulated.faults.add(FailBefore(502))
    simulated.faults.add(DropBefore())
    await one_read(github, ours(shop))
    assert time.slept == [0.5, 2.0]


@pytest.mark.parametrize(
    ("fault", "scope", "wait"),
    [
        (FailAfter(502), "request", None),
        (DropBefore(), "request", None),
        (SecondaryRateLimit(retry_after=90), "installation", 90),
        (SecondaryRateLimit(retry_after=None), "installation", 60),
        (SecondaryRateLimit(retry_after=None, status=429), "installation", 60),
    ],
)
async def test_a_write_that_fails_is_not_repeated_but_tells_what_to_wait_for(
    github: GitHub,
    simulated: SimulatedGitHub,
    shop: SimulatedRepository,
    maria: Person,
    fault: Fault,
    scope: str,
    wait: int,
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    simulated.faults.add(fault, method="POST")
    before = len(simulated.requests)
    with pytest.raises(Transient) as caught:
        await github.create_comment(ours(shop), issue.number, Target("issue"), "Hello")
    assert (caught.value.scope, caught.value.retry_after_seconds) == (scope, wait)
    await simulated.wait_for(lambda: len(simulated.requests) > before)
    assert len(simulated.requests) == before + 1


async def test_an_exhausted_rate_limit_says_when_it_resets(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository
) -> None:
    simulated.faults.add(PrimaryRateLimit(reset_after=1800))
    with pytest.raises(Transient) as caught:
        await github.pull(ours(shop), 1)
    assert caught.value.scope == "installation"
    assert caught.value.retry_after_seconds == pytest.approx(1800, abs=3)


async def test_a_permanent_refusal_has_githubs_text(github: GitHub, shop: SimulatedRepository, maria: Person) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    with pytest.raises(Refused) as caught:
        await github.create_comment(ours(shop), issue.number, Target("issue"), "x" * 70_000)
    assert caught.value.status == 422
    with pytest.raises(NotFound):
        await github.create_comment(ours(shop), 4711, Target("issue"), "Hello")


async def test_a_renamed_repository_is_still_written_to(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    known = ours(shop)
    await simulated.rename_repository(shop, "store")
    await github.create_comment(known, issue.number, Target("issue"), "Still here")
    assert [comment.body for comment in issue.comments] == ["Still here"]


async def test_no_log_line_holds_the_token(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        await one_read(github, ours(shop))
    assert lines[0]["path"] == f"/repositories/{shop.id}/branches/main"
    assert simulated.bot_token not in caplog.text + repr(lines)


def app_of(simulated: SimulatedGitHub) -> AppCredentials:
    return AppCredentials(str(simulated.app_id), simulated.app_private_key_pem)


def tokens_asked(simulated: SimulatedGitHub) -> int:
    return sum(request.path.endswith("/access_tokens") for request in simulated.requests)


async def test_concurrent_requests_of_an_app_share_one_token_until_shortly_before_it_expires(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    github = client(simulated_app, http, time, app_of(simulated_app))
    shop = ours(await simulated_app.create_repository("acme/shop"), INSTALLATION)
    await asyncio.gather(*(one_read(github, shop) for _ in range(5)))
    assert tokens_asked(simulated_app) == 1
    time.now += timedelta(minutes=56)
    await one_read(github, shop)
    assert tokens_asked(simulated_app) == 2


async def test_an_app_whose_token_was_revoked_gets_one_new_one(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    github = client(simulated_app, http, time, app_of(simulated_app))
    shop = ours(await simulated_app.create_repository("acme/shop"), INSTALLATION)
    await one_read(github, shop)
    simulated_app.world.tokens.clear()
    await one_read(github, shop)
    assert tokens_asked(simulated_app) == 2


@pytest.mark.parametrize(("status", "times"), [(401, 3), (403, 3), (404, 6)])
async def test_a_refusal_of_a_new_credential_passes(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, time: Time, status: int, times: int
) -> None:
    # Of 404 the repository itself is asked for, too: what does not exist is not waited for.
    simulated.faults.add(FailBefore(status), times=times)
    await one_read(github, ours(shop))
    assert time.slept == [2, 4, 8]


async def test_a_refusal_of_a_new_credential_is_no_effect_of_a_write(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    simulated.faults.add(FailBefore(403), method="POST", times=2)
    await github.create_comment(ours(shop), issue.number, Target("issue"), "Once.")
    assert [one.body for one in issue.comments_by(simulated.bot)] == ["Once."]


async def test_what_does_not_exist_is_not_waited_for(github: GitHub, shop: SimulatedRepository, time: Time) -> None:
    assert await github.permission(ours(shop), NOBODY) == ("none", NOBODY.login)
    with pytest.raises(NotFound):
        await github.thread(ours(shop), 99)
    assert time.slept == []


async def test_a_refusal_of_an_old_credential_is_final(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, time: Time
) -> None:
    time.now += timedelta(seconds=11)
    simulated.faults.add(FailBefore(403))
    with pytest.raises(Refused):
        await one_read(github, ours(shop))
    assert time.slept == []


async def test_each_new_token_of_an_app_may_be_refused_for_some_seconds(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    github = client(simulated_app, http, time, app_of(simulated_app))
    shop = ours(await simulated_app.create_repository("acme/shop"), INSTALLATION)
    for _ in range(2):
        simulated_app.faults.add(FailBefore(401), path="/repositories/*", times=2)
        await one_read(github, shop)
        time.now += timedelta(minutes=56)
    assert time.slept == [2, 4] * 2
    assert tokens_asked(simulated_app) == 2


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_limit_is_waited_for_by_githubs_clock(
    simulated: SimulatedGitHub, http: httpx.AsyncClient, shop: SimulatedRepository, hours: int
) -> None:
    wrong = Time(datetime.now(UTC) + timedelta(hours=hours))
    github = client(simulated, http, wrong, TokenCredentials(simulated.bot_token))
    simulated.faults.add(PrimaryRateLimit(60), times=None)
    with capture_logs() as logs, pytest.raises(Transient) as problem:
        await one_read(github, ours(shop))
    assert problem.value.retry_after_seconds is not None
    assert 58 <= problem.value.retry_after_seconds <= 62
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["clock-is-wrong"]


async def test_an_app_that_is_not_installed_there_is_told_so(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    github = client(simulated_app, http, time, app_of(simulated_app))
    with pytest.raises(Unauthenticated, match="acme/shop"):
        await github.git_token(Repository("github.example", 1, "acme", "shop"))


async def test_an_uninstalled_app_has_no_credentials_and_not_no_permission(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, time: Time
) -> None:
    github = client(simulated_app, http, time, app_of(simulated_app))
    shop = ours(await simulated_app.create_repository("acme/shop"), INSTALLATION)
    assert simulated_app.world.app is not None
    simulated_app.world.app = replace(simulated_app.world.app, installation_id=INSTALLATION + 1)
    with pytest.raises(Unauthenticated, match="no longer installed"):
        await github.permission(shop, NOBODY)
    simulated_app.faults.add(FailBefore(403), path="*/access_tokens")
    with pytest.raises(Unauthenticated):
        await github.permission(shop, NOBODY)
    simulated_app.faults.add(FailBefore(422), path="*/access_tokens")
    with pytest.raises(NotFound):
        await github.git_token(shop)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_an_app_whose_clock_is_wrong_goes_by_githubs(
    simulated_app: SimulatedGitHub, http: httpx.AsyncClient, hours: int
) -> None:
    github = client(simulated_app, http, Time(datetime.now(UTC) + timedelta(hours=hours)), app_of(simulated_app))
    assert (await github.identity()).id == simulated_app.bot.id


async def test_an_answer_that_did_not_change_comes_from_memory(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "First title")
    for _ in range(2):
        assert (await github.thread(ours(shop), issue.number)).title == "First title"
    issue.title = "Second title"
    assert (await github.thread(ours(shop), issue.number)).title == "Second title"
    assert [request.status for request in simulated.requests] == [200, 304, 200]


async def test_answers_in_memory_have_a_budget(
    github: GitHub,
    simulated: SimulatedGitHub,
    shop: SimulatedRepository,
    maria: Person,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_MOST_KNOWN", 1)
    first, second = [await maria.open_issue(shop, title) for title in ("First", "Second")]
    await github.thread(ours(shop), first.number)
    for _ in range(2):
        await github.thread(ours(shop), second.number)
    await github.thread(ours(shop), first.number)
    monkeypatch.setattr(transport, "_LARGEST_KNOWN_BYTES", 10)
    for _ in range(2):
        await github.thread(ours(shop), first.number)
    assert [request.status for request in simulated.requests] == [200, 200, 304, 200, 304, 200]


async def test_an_answer_that_trickles_ends(
    github: GitHub, simulated: SimulatedGitHub, shop: SimulatedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LONGEST_ANSWER_SECONDS", 0.2)
    simulated.faults.add(Trickle(1, 0.05), times=None)
    with pytest.raises(Transient, match="TimeoutError"):
        await one_read(github, ours(shop))


def test_every_answer_can_be_classified() -> None:
    for body in [b"", b"<html>", b"[]", b'{"errors": "x"}', b'{"message": null, "errors": [1]}']:
        for status in [301, 400, 403, 404, 409, 422, 429, 451, 500, 520]:
            assert str(classify(status, {"retry-after": "soon", "x-ratelimit-reset": "-"}, body))
