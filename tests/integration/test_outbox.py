"""The outbox: each item is on GitHub once, in order and within the limits, despite failures."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import httpx
import pytest

from bot.care import upkeep_rows as upkeep
from bot.github import transport
from bot.github.answers import LineRemark, OwnReview, Posted
from bot.github.auth import TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import Transient
from bot.model import Repository, Target, ThreadRef
from bot.operator.api import listings
from bot.redaction import Redactor
from bot.simulated.github import Person, SimulatedGitHub
from bot.simulated.github.faults import (
    DropAfter,
    DropBefore,
    FailAfter,
    FailBefore,
    Fault,
    Garble,
    GraphQLError,
    PrimaryRateLimit,
    SecondaryRateLimit,
)
from bot.simulated.github.model import Comment, Issue, Pull
from bot.store.database import DATABASE_AWAY, Pool, database
from bot.store.scope import EVERYTHING
from bot.thread import outbox_rows as outbox
from bot.thread import pacing, thread_comments
from bot.thread.marker import turn_marker
from bot.thread.outbox import LOCK_POLL_SECONDS, REVIEW, Drained, Sender, write_in_line
from bot.thread.outbox_rows import OutboxItem
from bot.verbs.status import overview
from tests.support.asks import asks
from tests.support.turn_rows import until

SECRET = "a-secret-of-the-bot"
LOCKED = "Unable to create comment because issue is locked."
NO_RIGHT = "Resource not accessible by integration"
AT_ONCE, FINAL, PROGRESS, DECLINED = 0, 1, 2, 3


@dataclass
class Time:
    """A clock that only sleeps and tests move."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)


@dataclass
class Bench:
    """One issue on a simulated GitHub, its rows in Postgres, and a sender between the two."""

    pool: Pool
    github: SimulatedGitHub
    time: Time
    sender: Sender
    repository: Repository
    maria: Person
    issue: Issue
    conversation_id: int

    @property
    def writer(self) -> str:
        return self.repository.writer

    @property
    def thread(self) -> ThreadRef:
        return ThreadRef(self.repository, self.conversation_id)

    @property
    def said(self) -> list[Comment]:
        return self.issue.comments_by(self.github.bot)

    @property
    def bodies(self) -> list[str]:
        """Return the bot's comments without their markers."""
        return [comment.body.rpartition("\n\n<!-- ")[0] for comment in self.said]

    async def drain(self) -> Drained:
        return await self.sender.drain(self.writer)

    async def drain_until_empty(self) -> None:
        while (due := (await self.drain()).next_due) is not None:
            self.time.now = max(self.time.now, due)

    async def turn(self) -> int:
        identifier: int = await self.pool.fetchval(
            "insert into turns (conversation_id, requested_by_id) values ($1, 1) returning id", self.conversation_id
        )
        await self.pool.execute(asks(f"turns where id = {identifier}", "do it", "maria", "issue"))
        return identifier

    async def wish(
        self,
        turn_id: int,
        content: str,
        *,
        part: int = 1,
        urgency: int = PROGRESS,
        waits_for: int | None = None,
        target: Target | None = None,
    ) -> int:
        async with self.pool.acquire() as connection:
            return await outbox.enqueue_comment(
                connection, self.thread, target or Target("issue"), content, urgency, turn_id, part, waits_for=waits_for
            )

    async def reply(self, content: str, asked_by: int | None = None) -> int:
        async with self.pool.acquire() as connection:
            return await outbox.enqueue_comment(
                connection, self.thread, Target("issue"), content, AT_ONCE, asked_by=asked_by
            )

    async def react(self, target: Target, content: str = "eyes", urgency: int = AT_ONCE) -> None:
        async with self.pool.acquire() as connection:
            await outbox.enqueue_reaction(connection, self.thread, target, content, urgency, None)

    async def row(self, identifier: int) -> asyncpg.Record:
        return await self.pool.fetchrow("select * from outbox where id = $1", identifier)

    def posts(self) -> list[datetime]:
        return [request.at for request in self.github.requests if request.method == "POST"]


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    time = Time()
    async with (
        database(database_url, size=4) as pool,
        SimulatedGitHub.running(tmp_path / "github", time) as github,
        httpx.AsyncClient() as http,
    ):
        ctx = await github.create_repository("acme/shop")
        maria = github.person("maria")
        ctx.allow(maria, "write")
        issue = await maria.open_issue(ctx, "It breaks")
        client = GitHub(
            api_url=github.api_url,
            graphql_url=github.graphql_url,
            credentials=TokenCredentials(github.bot_token),
            http=http,
            clock=time,
            sleep=time.sleep,
        )
        repository = Repository("github.example", ctx.id, "acme", "shop")
        yield Bench(
            pool=pool,
            github=github,
            time=time,
            sender=Sender(pool, client, lambda _: Redactor([SECRET]), time, time.sleep),
            repository=repository,
            maria=maria,
            issue=issue,
            conversation_id=await conversation(pool, repository, issue.number, "issue"),
        )


async def conversation(pool: Pool, repository: Repository, number: int, kind: str) -> int:
    await pool.execute(
        """insert into codebases (platform, repository_id, owner, name, folder)
           values ($1, $2, $3, $4, $5) on conflict do nothing""",
        *(repository.platform, repository.id, repository.owner, repository.name, repository.full_name),
    )
    identifier: int = await pool.fetchval(
        "insert into conversations (platform, repository_id, number, kind) values ($1, $2, $3, $4) returning id",
        *(repository.platform, repository.id, number, kind),
    )
    return identifier


async def test_a_tracking_comment_is_posted_once_and_edited_in_place(bench: Bench) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Queued.")
    await bench.drain_until_empty()
    assert await bench.wish(turn, "Working.") == row
    await bench.wish(turn, "Done.", urgency=FINAL)
    await bench.drain_until_empty()
    (comment,) = bench.said
    assert comment.body == f"Done.\n\n{turn_marker(turn, 1)}"
    assert comment.original == f"Queued.\n\n{turn_marker(turn, 1)}"
    assert len(comment.edits) == 1
    assert (await bench.row(row))["comment_url"].endswith(str(comment.id))


@pytest.mark.parametrize("fault", [FailAfter(502), DropAfter(), Garble(), FailBefore(502), DropBefore()])
async def test_exactly_one_comment_when_a_post_breaks(bench: Bench, fault: Fault) -> None:
    turn = await bench.turn()
    bench.github.faults.add(fault, method="POST")
    await bench.wish(turn, "Hello.")
    await bench.drain_until_empty()
    assert bench.bodies == ["Hello."]
    assert bench.said[0].edits == []


async def test_exactly_one_comment_when_the_sender_does_not_wait_for_the_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await bench.turn()
    bench.github.faults.add(DropAfter(5), method="POST")
    await bench.wish(turn, "Hello.")
    limits: list[asyncio.Timeout] = []

    def without_end(_: float) -> asyncio.Timeout:
        limits.append(asyncio.timeout(None))
        return limits[-1]

    with monkeypatch.context() as impatient:
        impatient.setattr(transport, "asyncio", SimpleNamespace(timeout=without_end))
        draining = asyncio.create_task(bench.drain())
        await bench.github.wait_for(lambda: bench.said)
        limits[-1].reschedule(0)  # long ago
        await draining
    (posted,) = bench.said
    await bench.drain_until_empty()
    assert [comment.id for comment in bench.said] == [posted.id]


async def test_exactly_one_comment_when_the_sender_was_killed_before_it_heard_the_answer(bench: Bench) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Hello.")
    # The state after a kill of the sender: the row is taken, the comment is on GitHub, its id is unknown.
    async with bench.pool.acquire() as connection:
        await outbox.take(connection, row, bench.time.now)
    posted = await bench.github.person(bench.github.bot.login).comment(bench.issue, f"Hello.\n\n{turn_marker(turn, 1)}")
    await bench.drain_until_empty()
    assert [comment.id for comment in bench.said] == [posted.id]
    assert (await bench.row(row))["comment_id"] == posted.id


@pytest.mark.parametrize(("age", "pause"), [(2, 13), (600, 5)])
async def test_a_killed_sender_s_request_is_looked_for_again_when_it_can_write_no_more_and_then_sent(
    bench: Bench, age: int, pause: int
) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Hello.")
    async with bench.pool.acquire() as connection:
        await outbox.take(connection, row, bench.time.now)
    await bench.maria.comment(bench.issue, f"Mine.\n\n{turn_marker(turn, 1)}")
    bench.time.now += timedelta(seconds=age)
    await bench.drain_until_empty()
    looks = [
        request.at
        for request in bench.github.requests
        if request.path.endswith("/comments") and request.method == "GET"
    ]
    assert len(looks) == 2
    assert looks[1] - looks[0] >= timedelta(seconds=pause)
    assert bench.bodies == ["Hello."]


async def test_a_rate_limited_search_does_not_forget_that_the_comment_may_exist(bench: Bench) -> None:
    turn = await bench.turn()
    bench.github.faults.add(FailAfter(502), method="POST")
    await bench.wish(turn, "Hello.")
    await bench.drain()
    bench.github.faults.add(PrimaryRateLimit(reset_after=600), method="GET")
    await bench.drain_until_empty()
    assert bench.bodies == ["Hello."]


@pytest.mark.parametrize(
    ("ending", "old", "method", "fault"),
    [
        ("sent", PROGRESS, "PATCH", None),
        ("not sent", PROGRESS, "PATCH", FailBefore(502)),
        ("nobody knows", PROGRESS, "POST", DropAfter()),
        ("given up", PROGRESS, "PATCH", FailBefore(422, LOCKED)),
        ("given up", FINAL, "POST", FailBefore(422, LOCKED)),
        ("deleted", PROGRESS, "PATCH", None),
        ("deleted, posted anew", FINAL, "PATCH", None),
        ("deleted, nobody knows", PROGRESS, "GET", FailBefore(502)),
    ],
)
async def test_an_answer_that_comes_while_an_older_text_is_sent_is_posted_however_that_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ending: str, old: int, method: str, fault: Fault | None
) -> None:
    turn = await bench.turn()
    if method != "POST":
        await bench.wish(turn, "Queued.")
        await bench.drain_until_empty()
    if ending.startswith("deleted"):
        await bench.github.person("acme").delete(bench.said[0])
    if fault is not None:
        bench.github.faults.add(fault, method=method)
    row = await bench.wish(turn, "Older.", urgency=old)
    await meanwhile(monkeypatch, lambda: bench.wish(turn, "The answer.", urgency=FINAL))
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]
    assert (await bench.row(row))["state"] == "sent"


async def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Act once: when the sender's next request has its answer and nothing was recorded of it."""
    request = Sender._request

    async def then_act(self: Sender, item: OutboxItem, body: str) -> Posted | None:
        monkeypatch.setattr(Sender, "_request", request)
        try:
            return await request(self, item, body)
        finally:
            await act()

    monkeypatch.setattr(Sender, "_request", then_act)


@pytest.mark.parametrize("is_final", [True, False])
async def test_an_answer_is_not_given_up_for_the_attempts_of_progress(bench: Bench, *, is_final: bool) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Working.")
    await bench.pool.execute("update outbox set attempts = $2 where id = $1", row, pacing.MOST_ATTEMPTS - 1)
    await bench.wish(turn, "More.", urgency=FINAL if is_final else PROGRESS)
    bench.github.faults.add(FailBefore(502), method="POST")
    await bench.drain_until_empty()
    assert bench.bodies == (["More."] if is_final else [])


async def test_the_pace_holds_across_processes(bench: Bench) -> None:
    for number in range(6):
        await bench.reply(f"Answer {number}")
        another = Sender(bench.pool, bench.sender.github, lambda _: Redactor(), bench.time, bench.time.sleep)
        await another.drain(bench.writer)
    posts = bench.posts()
    assert [(after - posts[0]).total_seconds() for after in posts] == [0, 0, 0, 0, 0, 1]


async def test_when_the_hour_is_used_up_edits_still_go_and_the_rest_waits(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Queued.")
    await bench.drain_until_empty()
    await bench.pool.execute(
        """insert into outbox (writer, conversation_id, kind, urgency, target_kind, content, state, posted_at)
           select $1, $2, 'comment', 0, 'issue', 'x', 'sent', $3::timestamptz - n * interval '7 seconds'
           from generate_series(1, 500) as n""",
        *(bench.writer, bench.conversation_id, bench.time.now),
    )
    await bench.wish(turn, "Done.", urgency=FINAL)
    await bench.reply("Later")
    drained = await bench.drain()
    assert bench.bodies == ["Done."]
    assert drained.next_due is not None
    assert drained.next_due > bench.time.now
    await bench.drain_until_empty()
    assert bench.bodies == ["Done.", "Later"]


async def test_reactions_and_command_answers_overtake_finals_and_finals_overtake_progress(bench: Bench) -> None:
    final, progress = await bench.turn(), await bench.turn()
    await bench.wish(progress, "Working.", urgency=PROGRESS)
    await bench.wish(final, "Done.", urgency=FINAL)
    await bench.reply("Status.")
    await bench.react(Target("issue"))
    await bench.drain_until_empty()
    assert bench.bodies == ["Status.", "Done.", "Working."]
    assert bench.issue.reactions_by(bench.github.bot) == ["eyes"]


async def test_a_person_who_asks_much_delays_others_by_ten_writes(bench: Bench) -> None:
    for number in range(21):
        await bench.reply(f"noisy {number}", asked_by=7)
    await bench.wish(await bench.turn(), "for maria", urgency=FINAL)
    await bench.reply("for all")

    await bench.drain_until_empty()

    noisy = [f"noisy {number}" for number in range(21)]
    assert bench.bodies == [*noisy[:10], "for all", "for maria", *noisy[10:]]


async def test_a_person_who_asks_much_leaves_a_part_of_the_hour_to_others(bench: Bench) -> None:
    await bench.pool.execute(
        """insert into outbox (writer, conversation_id, kind, urgency, target_kind, content, state, posted_at, asked_by)
           select $1, $2, 'comment', 0, 'issue', 'x', 'sent', $3::timestamptz - n * interval '7 seconds', 7
           from generate_series(1, 401) as n""",
        *(bench.writer, bench.conversation_id, bench.time.now),
    )
    await bench.reply("noisy", asked_by=7)
    await bench.reply("for maria", asked_by=1)

    drained = await bench.drain()

    assert bench.bodies == ["for maria"]
    assert (drained.used_up, drained.next_due) == (True, bench.time.now + timedelta(minutes=60, seconds=-401 * 7))
    await bench.drain_until_empty()
    assert bench.bodies == ["for maria", "noisy"]


async def test_answers_of_a_conversation_are_in_the_order_of_its_turns_whatever_their_rounds(bench: Bench) -> None:
    for content in ("First", "Second"):
        await bench.wish(await bench.turn(), content, urgency=FINAL)
    # A person who asks much has rows in a later round than another person's later request.
    await bench.pool.execute("update outbox set round = 1 where content = 'First'")

    await bench.drain()

    assert bench.bodies == ["First", "Second"]


@pytest.mark.parametrize("urgency", [FINAL, PROGRESS])
async def test_an_answer_waits_for_an_earlier_turn_whose_comment_github_did_not_take_yet(
    bench: Bench, urgency: int
) -> None:
    bench.github.faults.add(FailBefore(502), method="POST")
    await bench.wish(await bench.turn(), "First", urgency=urgency)
    await bench.wish(await bench.turn(), "Second", urgency=FINAL)

    await bench.drain()
    assert bench.bodies == []
    await bench.drain_until_empty()

    assert bench.bodies == ["First", "Second"]


async def test_a_secondary_limit_pauses_the_writer_for_later_items_too(bench: Bench) -> None:
    bench.github.faults.add(SecondaryRateLimit(retry_after=90), method="POST")
    await bench.reply("One")
    started = bench.time.now
    assert (await bench.drain()).next_due == started + timedelta(seconds=90)
    await bench.reply("Two")
    another = Sender(bench.pool, bench.sender.github, lambda _: Redactor(), bench.time, bench.time.sleep)
    assert (await another.drain(bench.writer)).next_due == started + timedelta(seconds=90)
    assert bench.said == []
    await bench.drain_until_empty()
    assert bench.bodies == ["One", "Two"]
    assert bench.time.now >= started + timedelta(seconds=90)


@pytest.mark.parametrize(
    "limit",
    [
        SecondaryRateLimit(retry_after=None),
        SecondaryRateLimit(retry_after=None, status=429),
        FailBefore(422, "Validation Failed: body was submitted too quickly"),
    ],
)
async def test_a_limit_that_does_not_say_until_when_pauses_the_writer_for_a_minute(bench: Bench, limit: Fault) -> None:
    bench.github.faults.add(limit, method="POST")
    first, started = await bench.reply("One"), bench.time.now
    await bench.reply("Two")
    drained = await bench.drain()
    assert (drained.next_due, drained.paused) == (started + timedelta(seconds=60), True)
    assert len(bench.posts()) == 1
    await bench.drain_until_empty()
    assert bench.bodies == ["One", "Two"]
    assert (await bench.row(first))["attempts"] == 0


async def test_a_paused_installation_delays_no_other(bench: Bench) -> None:
    bench.github.faults.add(SecondaryRateLimit(retry_after=3600), method="POST")
    await bench.reply("Held")
    await bench.drain()
    other = replace(bench.repository, id=bench.repository.id + 1, name="other", installation_id=7)
    conversation_id = await conversation(bench.pool, other, 1, "issue")
    async with bench.pool.acquire() as connection:
        await outbox.enqueue_comment(connection, ThreadRef(other, conversation_id), Target("issue"), "Free", AT_ONCE)
        await connection.execute("delete from procrastinate_jobs")  # the doorbells are lost
        assert await outbox.forgotten_writers(connection, bench.time.now) == [other.writer]
        assert await outbox.paused_until(connection, other.writer, bench.time.now) is None


async def test_a_place_that_github_does_not_find_yet_is_tried_again_for_minutes(bench: Bench) -> None:
    bench.github.faults.add(FailBefore(404), method="POST", times=4)
    started = bench.time.now
    await bench.reply("Hello.")
    await bench.drain_until_empty()
    assert bench.bodies == ["Hello."]
    assert bench.time.now - started >= timedelta(seconds=2 + 4 + 8 + 16)


@pytest.mark.expects_errors
@pytest.mark.parametrize(("status", "minutes"), [(404, 8), (410, 0)])
async def test_an_answer_that_cannot_be_posted_is_seen_by_the_operator(bench: Bench, status: int, minutes: int) -> None:
    bench.github.faults.add(FailBefore(status), method="POST", times=None)
    turn, started = await bench.turn(), bench.time.now
    row = await bench.wish(turn, "Done.", urgency=FINAL)
    await bench.drain_until_empty()
    assert (await bench.row(row))["state"] == "failed"
    assert timedelta(minutes=minutes) <= bench.time.now - started <= timedelta(minutes=minutes + 2)
    async with bench.pool.acquire() as connection:
        (listed,) = await listings.newest(connection, "turns", None, scope=EVERYTHING)
        assert "Simulated failure" in listed["reason"]
        assert (await overview(connection, bench.conversation_id)).not_posted == turn


async def test_a_link_to_the_answer_is_not_posted_again_where_somebody_deleted_the_comment(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    await bench.github.person("acme").delete(bench.said[0])
    answer = await bench.wish(turn, "The answer.", part=2, urgency=FINAL)
    await bench.wish(turn, "Moved to %ANSWER_URL%.", urgency=PROGRESS, waits_for=answer)
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]


@pytest.mark.parametrize(("seconds", "is_new"), [(59, False), (61, True)])
async def test_an_answer_later_than_a_minute_is_a_new_comment_and_the_only_one(
    bench: Bench, seconds: int, is_new: bool
) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Queued.")
    await bench.drain_until_empty()
    (first,) = bench.said
    bench.time.now += timedelta(seconds=seconds)
    async with bench.pool.acquire() as connection:
        await thread_comments.ended(
            connection, bench.thread, turn, Target("issue"), ["It is done."], "done", bench.time.now
        )
    await bench.drain_until_empty()
    assert bench.bodies == ["It is done."]
    assert (bench.said[0] is not first) == is_new
    async with bench.pool.acquire() as connection:
        (listed,) = await listings.newest(connection, "turns", None, scope=EVERYTHING)
    assert listed["comment_url"].endswith(str(bench.said[0].id))


async def test_answers_stand_in_the_order_of_the_requests(bench: Bench) -> None:
    async def answer(turn: int, words: str) -> None:
        async with bench.pool.acquire() as connection:
            await thread_comments.ended(
                connection, bench.thread, turn, Target("issue"), [words], "done", bench.time.now
            )

    long, stopped, short = [await bench.turn() for _ in range(3)]
    await bench.wish(long, "Queued.")
    await bench.drain_until_empty()
    bench.time.now += timedelta(seconds=61)
    await bench.wish(stopped, "Stopped.")
    await bench.wish(short, "Queued.")
    await bench.drain_until_empty()
    for turn, words in ((long, "First."), (short, "Second.")):
        await answer(turn, words)
    await bench.drain_until_empty()
    assert bench.bodies == ["Stopped.", "First.", "Second."]


async def test_a_comment_without_a_turn_becomes_another_by_edit(bench: Bench) -> None:
    async with bench.pool.acquire() as connection:
        row = await thread_comments.reply(connection, bench.thread, Target("issue"), "Queued.")
        await bench.drain_until_empty()
        assert await thread_comments.reply(connection, bench.thread, Target("issue"), "Reset.", instead_of=row) == row
        await bench.drain_until_empty()
        assert bench.bodies == ["Reset."]
        await bench.github.person("acme").delete(bench.said[0])
        await thread_comments.reply(connection, bench.thread, Target("issue"), "Removed.", instead_of=row)
    await bench.drain_until_empty()
    assert bench.bodies == ["Removed."]


async def test_an_outsider_is_told_why_once_and_answered_once_a_day_after_everything_else(bench: Bench) -> None:
    async with bench.pool.acquire() as connection:
        for day in (0, 0.9, 1.1, 800):
            comment = await bench.maria.comment(bench.issue, "@bot do it")
            now, target = bench.time.now + timedelta(days=day), Target("comment", comment.id)
            await thread_comments.turn_away(connection, bench.thread, target, 5, "Nothing was done.", now)
            await upkeep.delete_old(connection, timedelta(days=30), timedelta(days=30), timedelta(days=365))
    await bench.wish(await bench.turn(), "Working.", urgency=PROGRESS)
    await bench.drain_until_empty()
    posted = [request.path for request in bench.github.requests if request.method == "POST"][-5:]
    assert [path.rpartition("/")[2] for path in posted] == [
        "comments",
        "reactions",
        "comments",
        "reactions",
        "reactions",
    ]
    assert bench.bodies == ["Working.", "Nothing was done."]


async def test_reactions_to_outsiders_take_a_tenth_of_the_budget_at_most(bench: Bench) -> None:
    comments = [await bench.maria.comment(bench.issue, "@bot do it") for _ in range(12)]
    for comment in comments:
        await bench.react(Target("comment", comment.id), "confused", DECLINED)
    drained = await bench.drain()
    assert len(bench.posts()) == 8
    assert drained.next_due is not None
    await bench.reply("Answered meanwhile.")
    await bench.drain()
    assert bench.bodies == ["Answered meanwhile."]
    await bench.drain_until_empty()
    assert len(bench.posts()) == 13


async def test_a_later_part_never_comes_before_an_earlier_one_but_a_command_answer_may_pass(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Part one", part=1, urgency=FINAL)
    await bench.wish(turn, "Part two", part=2, urgency=FINAL)
    bench.github.faults.add(FailBefore(502), method="POST")
    await bench.drain()
    await bench.reply("Status.")
    await bench.drain()
    assert bench.bodies == ["Status."]
    await bench.drain_until_empty()
    assert bench.bodies == ["Status.", "Part one", "Part two"]


async def moved(bench: Bench, turn: int) -> int:
    """Answer in a new comment, in whose place the tracking comment is; return the answer's row."""
    answer = await bench.wish(turn, "The answer.", part=2, urgency=FINAL)
    await bench.wish(turn, "Moved to %ANSWER_URL%.", waits_for=answer)
    return answer


async def test_the_tracking_comment_of_a_long_turn_goes_once_the_answer_is_posted(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    await moved(bench, turn)
    bench.github.faults.add(FailBefore(502), method="POST")
    await bench.drain()
    assert bench.bodies == ["Working."]
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]


async def test_a_tracking_comment_that_was_never_posted_is_not_posted_beside_the_answer(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Working.")
    await moved(bench, turn)
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]
    assert not [request for request in bench.github.requests if request.method == "DELETE"]


@pytest.mark.parametrize("fault", [DropAfter(), FailAfter(502), FailBefore(502), FailBefore(404)])
async def test_a_tracking_comment_goes_once_also_where_the_request_breaks(bench: Bench, fault: Fault) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    await moved(bench, turn)
    bench.github.faults.add(fault, method="DELETE")
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]
    assert ((await bench.row(row))["state"], (await bench.row(row))["comment_id"]) == ("sent", None)


async def test_a_sender_that_was_killed_after_the_deletion_deletes_nothing_else(bench: Bench) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    await moved(bench, turn)
    bench.github.faults.add(FailBefore(502), method="DELETE")
    await bench.drain()
    # The state after a kill of the sender: the row is taken, the comment is gone.
    async with bench.pool.acquire() as connection:
        await outbox.take(connection, row, bench.time.now)
    await bench.github.person(bench.github.bot.login).delete(bench.said[0])
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]
    assert (await bench.row(row))["state"] == "sent"


@pytest.mark.parametrize("may_fold", [True, False])
async def test_a_tracking_comment_that_may_not_be_deleted_leads_to_the_answer_and_is_folded(
    bench: Bench, may_fold: bool
) -> None:
    turn = await bench.turn()
    row = await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    answer = await moved(bench, turn)
    bench.github.faults.add(FailBefore(403, NO_RIGHT), method="DELETE", times=4)
    if not may_fold:
        bench.github.faults.add(GraphQLError(NO_RIGHT, "FORBIDDEN"), path="*/graphql", times=4)
    await bench.drain_until_empty()
    assert bench.bodies == [f"Moved to {(await bench.row(answer))['comment_url']}.", "The answer."]
    assert [comment.minimized_as for comment in bench.said] == ["OUTDATED" if may_fold else None, None]
    assert (await bench.row(row))["state"] == "sent"


async def test_a_tracking_comment_that_goes_late_holds_up_no_later_answer(bench: Bench) -> None:
    first, second = await bench.turn(), await bench.turn()
    await bench.wish(first, "Working.")
    await bench.drain_until_empty()
    now = bench.time.now = bench.time.now + timedelta(seconds=61)
    async with bench.pool.acquire() as connection:
        await thread_comments.ended(connection, bench.thread, first, Target("issue"), ["The answer."], "done", now)
    bench.github.faults.add(FailBefore(502), method="DELETE", times=None)
    await bench.drain()
    await bench.wish(second, "The next answer.", urgency=FINAL)
    await bench.drain()
    assert bench.bodies == ["Working.", "The answer.", "The next answer."]


async def test_when_the_answer_is_refused_the_tracking_comment_says_it_instead(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    bench.github.faults.add(FailBefore(403, LOCKED), method="POST", times=4)
    await moved(bench, turn)
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]


async def test_a_review_gets_its_reaction_itself(bench: Bench) -> None:
    git = bench.github.world.repository("acme/shop")
    assert git is not None
    await bench.maria.push(git, "feature", {"a.py": "x = 1\n"}, "A feature")
    pull = await bench.maria.open_pull(git, head="feature", base="main", title="A feature")
    review = await bench.maria.review(pull, "@bot look")
    number, bench.issue = pull.number, pull
    bench.conversation_id = await conversation(bench.pool, bench.repository, number, "pull")
    for _ in range(2):
        await bench.react(Target("review", review.id))
        await bench.drain_until_empty()
    assert [one.content for one in review.reactions] == ["eyes"]
    assert pull.reactions == []


async def test_a_refused_comment_fails_with_its_reason_and_the_writer_continues(bench: Bench) -> None:
    bench.github.faults.add(FailBefore(403, LOCKED), method="POST", times=4)
    refused = await bench.reply("Refused")
    await bench.reply("Next")
    await bench.drain_until_empty()
    row = await bench.row(refused)
    assert row["state"] == "failed"
    assert row["error"].startswith("403")
    assert bench.bodies == ["Next"]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_an_answer_that_is_refused_for_hours_is_posted_once_it_may_be(bench: Bench, method: str) -> None:
    turn = await bench.turn()
    if method == "PATCH":
        await bench.wish(turn, "Working.")
        await bench.drain_until_empty()
    bench.github.faults.add(FailBefore(403, NO_RIGHT), method=method, times=30)
    await bench.wish(turn, "The answer.", urgency=FINAL)
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]


@pytest.mark.expects_errors
async def test_an_answer_is_given_up_after_a_day_of_refusals(bench: Bench) -> None:
    bench.github.faults.add(FailBefore(403, NO_RIGHT), method="POST", times=None)
    began = bench.time.now
    answer = await bench.wish(await bench.turn(), "The answer.", urgency=FINAL)
    await bench.drain_until_empty()
    assert (await bench.row(answer))["state"] == "failed"
    assert timedelta(hours=20) < bench.time.now - began < timedelta(hours=30)


async def test_a_404_on_an_edit_is_looked_at_before_the_comment_counts_as_deleted(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Working.")
    await bench.drain_until_empty()
    # Also longer than the time for which a new credential is given.
    bench.github.faults.add(FailBefore(404), method="PATCH", times=6)
    await bench.wish(turn, "The answer.", urgency=FINAL)
    await bench.drain_until_empty()
    assert bench.bodies == ["The answer."]


async def test_a_clock_that_goes_back_delays_nothing(bench: Bench) -> None:
    bench.time.now += timedelta(hours=1)
    await bench.reply("First")
    await bench.drain_until_empty()
    bench.time.now -= timedelta(hours=1)
    set_right = bench.time.now
    await bench.reply("Second")
    await bench.drain_until_empty()
    assert bench.bodies == ["First", "Second"]
    assert bench.time.now - set_right < timedelta(seconds=5)


async def test_an_answer_is_posted_again_if_the_tracking_comment_was_deleted(bench: Bench) -> None:
    turn = await bench.turn()
    await bench.wish(turn, "Queued.")
    await bench.drain_until_empty()
    await bench.github.person("acme").delete(bench.said[0])
    row = await bench.wish(turn, "Working.", urgency=PROGRESS)
    await bench.drain_until_empty()
    assert bench.said == []
    assert (await bench.row(row))["state"] == "failed"
    await bench.wish(turn, "Done.", urgency=FINAL)
    await bench.drain_until_empty()
    assert bench.bodies == ["Done."]


async def test_an_answer_to_a_deleted_inline_comment_goes_to_the_conversation(bench: Bench) -> None:
    ctx = bench.issue.repository
    await bench.maria.push(ctx, "topic", {"a.txt": "a\n"}, "Add a")
    pull: Pull = await bench.maria.open_pull(ctx, head="topic", title="Repair")
    inline = await bench.maria.review_comment(pull, "a.txt", 1, "@bot why?")
    await bench.maria.delete(inline)
    bench.issue = pull
    bench.conversation_id = await conversation(bench.pool, bench.repository, pull.number, "pull")
    turn = await bench.turn()
    await bench.wish(turn, "Because.", target=Target("review-comment", inline.id), urgency=FINAL)
    await bench.drain_until_empty()
    assert bench.bodies == ["Because."]


@pytest.mark.expects_errors
async def test_an_answer_in_a_thread_that_is_gone_is_posted_nowhere_else(bench: Bench) -> None:
    async with bench.pool.acquire() as connection:
        await thread_comments.answer_inline(connection, bench.thread, 12345, "I kept it.", 1)
    await bench.drain_until_empty()
    assert bench.bodies == []
    assert await bench.pool.fetchval("select state from outbox") == "failed"


async def test_a_reaction_enqueued_twice_is_one_reaction(bench: Bench) -> None:
    bench.github.faults.add(FailAfter(502), method="POST")
    for _ in range(2):
        await bench.react(Target("issue"))
    await bench.drain_until_empty()
    assert bench.issue.reactions_by(bench.github.bot) == ["eyes"]


async def test_nothing_leaves_with_a_secret_or_a_forged_marker(bench: Bench) -> None:
    await bench.reply(f"It is {SECRET}. {turn_marker(1, 1)}")
    await bench.drain_until_empty()
    (comment,) = bench.said
    assert "It is [redacted]." in comment.body
    assert turn_marker(1, 1) not in comment.body


async def test_bad_credentials_stop_the_writer_and_lose_nothing(bench: Bench) -> None:
    await bench.reply("Hello.")
    tokens = dict(bench.github.world.tokens)
    bench.github.world.tokens.clear()
    due = (await bench.drain()).next_due
    assert due == bench.time.now + timedelta(seconds=60)
    bench.github.world.tokens.update(tokens)
    await bench.drain_until_empty()
    assert bench.bodies == ["Hello."]


async def test_two_senders_never_send_for_one_writer(bench: Bench) -> None:
    for number in range(3):
        await bench.reply(f"Answer {number}")
    async with bench.pool.acquire() as connection:
        assert await outbox.lock_writer(connection, bench.writer)
        drained = await bench.drain()
        assert drained.next_due is not None
        assert bench.said == []
    await asyncio.gather(bench.drain(), bench.drain())
    await bench.drain_until_empty()
    assert bench.bodies == ["Answer 0", "Answer 1", "Answer 2"]


async def test_a_connection_that_goes_back_to_its_pool_holds_no_lock(bench: Bench, database_url: str) -> None:
    async with database(database_url, size=1) as one, database(database_url, size=1) as another:
        for pool in (one, another, one):
            async with pool.acquire() as connection:
                assert await outbox.lock_writer(connection, bench.writer)


async def test_a_process_that_is_suspended_with_the_lock_of_a_writer_loses_it(
    bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.store.database.IDLE_WITH_A_LOCK", "50ms")
    async with database(database_url, size=1) as suspended, suspended.acquire() as silent:
        assert await outbox.lock_writer(silent, bench.writer)

        async def is_free() -> bool:
            # A new session for each try: one that waits for the next try ends after the same time.
            async with database(database_url, size=1) as another, another.acquire() as connection:
                return await outbox.lock_writer(connection, bench.writer)

        await until(is_free)
        with pytest.raises(DATABASE_AWAY):
            await silent.fetchval("select 1")


async def test_a_pull_request_keeps_the_limits_of_its_writer(bench: Bench) -> None:
    made: list[datetime] = []

    async def create() -> None:
        made.append(bench.time())

    async def limited() -> None:
        raise Transient("installation", 40, "secondary rate limit")

    async def in_line(act: Callable[[], Awaitable[None]] = create) -> None:
        await write_in_line(bench.pool, bench.thread.key, act, bench.time, bench.time.sleep)

    async with bench.pool.acquire() as another:
        assert await outbox.lock_writer(another, bench.repository.writer)
        waiting = asyncio.create_task(in_line())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 3 * LOCK_POLL_SECONDS)
        assert not made, "another sender is at work"
    await waiting
    for _ in range(pacing.BURST):
        await in_line()
    assert made[-1] - made[0] >= pacing.SPACING

    await bench.reply("Opened.")
    await bench.sender.drain(bench.repository.writer)
    assert bench.posts()[-1] - made[-1] >= pacing.SPACING, "a comment waits after it too"

    with pytest.raises(Transient):
        await in_line(limited)
    before = bench.time()
    await in_line()
    assert made[-1] - before >= timedelta(seconds=40)


async def review_row(bench: Bench, *remarks: LineRemark) -> tuple[int, Pull]:
    """State the review of a pull request, and its tracking comment, which the review takes the place of."""
    shop = bench.github.world.repositories[bench.repository.id]
    await bench.maria.push(shop, "fix", {"cart.py": "total = 0\ncount = 0\n"}, "Count")
    pull = await bench.maria.open_pull(shop, head="fix", title="Count")
    bench.conversation_id = await conversation(bench.pool, bench.repository, pull.number, "pull")
    turn = await bench.turn()
    await bench.wish(turn, "Working on it.", target=Target("pull"))
    await bench.drain_until_empty()
    review = REVIEW.dump_json(OwnReview(pull.head_sha, remarks, f"Two things. a {SECRET}")).decode()
    async with bench.pool.acquire() as connection:
        await thread_comments.reviewed(connection, bench.thread, turn, Target("pull"), "Two things.", review)
    return turn, pull


@pytest.mark.parametrize("fault", [FailAfter(502), DropAfter(), Garble(), FailBefore(502), DropBefore()])
async def test_exactly_one_review_when_its_post_breaks(bench: Bench, fault: Fault) -> None:
    turn, pull = await review_row(bench, LineRemark("cart.py", 1, "RIGHT", f"Why? {SECRET}"))
    bench.github.faults.add(fault, method="POST", path="*/reviews")
    await bench.drain_until_empty()
    (review,) = pull.reviews
    (remark,) = pull.review_comments
    assert (review.body, remark.body) == (
        f"Two things.\n\n{turn_marker(turn, 2)}",
        f"Why? [redacted]\n\n{turn_marker(turn, 2)}",
    )
    assert pull.comments == [], "the tracking comment is gone"


async def test_a_review_of_a_killed_sender_is_found_again(bench: Bench) -> None:
    turn, pull = await review_row(bench)
    async with bench.pool.acquire() as connection:
        found = await outbox.next_to_send(connection, bench.writer, bench.time.now, only_edits=False)
        assert found is not None
        taken = await outbox.take(connection, found[0], bench.time.now)
    await bench.sender._request(taken, f"Two things.\n\n{turn_marker(turn, 2)}")
    await bench.drain_until_empty()
    assert len(pull.reviews) == 1
    assert (await bench.row(taken.id))["comment_url"].endswith(f"#pullrequestreview-{pull.reviews[0].id}")
    assert pull.comments == []


async def test_remarks_whose_lines_github_refuses_go_with_the_text_and_are_never_lost(bench: Bench) -> None:
    turn, pull = await review_row(bench, LineRemark("cart.py", 9, "RIGHT", "Far away."))
    await bench.drain_until_empty()
    assert [one.body for one in pull.reviews] == [f"Two things. a [redacted]\n\n{turn_marker(turn, 2)}"]
    assert pull.review_comments == []


async def test_a_review_whose_text_changes_while_its_lines_are_refused_says_the_newer_text(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, pull = await review_row(bench, LineRemark("cart.py", 9, "RIGHT", "Far away."))
    newer = REVIEW.dump_json(OwnReview(pull.head_sha, (LineRemark("cart.py", 1, "RIGHT", "Near."),), "Whole.")).decode()

    async def rewrite() -> None:
        async with bench.pool.acquire() as connection:
            await thread_comments.reviewed(connection, bench.thread, turn, Target("pull"), "One thing.", newer)

    await meanwhile(monkeypatch, rewrite)
    await bench.drain_until_empty()
    said = [one.body or "" for one in pull.reviews] + [one.body for one in pull.review_comments]
    assert [body.partition("\n")[0] for body in said] == ["One thing.", "Near."]


async def test_a_review_that_github_refuses_whole_is_told_in_the_tracking_comment(bench: Bench) -> None:
    bench.github.faults.add(FailBefore(422, LOCKED), method="POST", path="*/reviews", times=None)
    turn, pull = await review_row(bench, LineRemark("cart.py", 1, "RIGHT", "Why?"))
    await bench.drain_until_empty()
    assert pull.reviews == []
    assert [one.body for one in pull.comments] == [f"Two things. a [redacted]\n\n{turn_marker(turn, 1)}"]
