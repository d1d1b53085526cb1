"""Commands x situation x reply: each is played on rows, and docs/commands.md has the table that comes out."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from bot.ask import Ask
from bot.model import Actor, Target, Thread, ThreadRef
from bot.rules import Rules
from bot.store import turns
from bot.store.database import Connection, Pool
from bot.thread.authority import Policy
from bot.turn.parsing import Command, Request
from bot.turn.request import Nodes, RequestContext
from bot.verbs import VERBS
from tests.support.doc_tables import is_in_the_docs
from tests.support.turn_rows import NODE, NOON, TurnRows, repository

COMMANDS = (
    *("/help", "/status", "/stop", "/stop all", "/start", "/retry", "/pr", "/pr draft", "/reset-context", "/reset"),
    *("/worktree", "/worktree list", "/worktree reset", "/worktree remove", "/worktree restore", "/worktree prune"),
    *("/autofix", "/autofix on", "/autofix off"),
)
LATER = {
    "reset": "the worktree is reset",
    "remove": "the worktree is removed",
    "restore": "the rescued work is restored",
    "pull-request": "the pull request is opened",
}
FOUND = """
select o.content from outbox o where o.kind = 'comment' and o.turn_id is null and not o.id = any ($1::bigint[])
order by o.id
"""
Situation = Callable[[TurnRows, int], Awaitable[None]]


async def nothing(rows: TurnRows, conversation: int) -> None:
    pass


async def waits(rows: TurnRows, conversation: int) -> None:
    await rows.ask(conversation)


async def runs(rows: TurnRows, conversation: int) -> None:
    await rows.ask(conversation)
    await rows.claimed()


async def pushed(rows: TurnRows, conversation: int) -> None:
    await rows.ask(conversation)
    turn = await rows.claimed()
    await turns.save_worktree(rows.db, turn.claim, "threadtree/issue-1", "main", "a" * 40)
    await rows.db.execute(
        "insert into sessions (conversation_id, agent, active, assistant_session_id) values ($1, 'custom', true, 's')",
        conversation,
    )
    await rows.end(turn.claim)


async def failed(rows: TurnRows, conversation: int) -> None:
    await rows.ask(conversation)
    turn = await rows.claimed()
    await turns.end(rows.db, turn.claim, "failed", "It failed.")


async def silent(rows: TurnRows, conversation: int) -> None:
    await runs(rows, conversation)
    await rows.db.execute(
        "insert into outbox (writer, conversation_id, kind, urgency, target_kind, content, state, posted_at) "
        "select 'w', $1, 'comment', 0, 'issue', 'Hello.', 'sent', $2 from generate_series(1, 30)",
        conversation,
        NOON,
    )


SITUATIONS: dict[str, Situation] = {
    "nothing was asked yet": nothing,
    "a request waits": waits,
    "the agent works": runs,
    "work was pushed": pushed,
    "the request failed": failed,
    "30 comments within an hour": silent,
}


def context(db: Connection, thread: ThreadRef, folder: str, silent_until: datetime | None) -> RequestContext:
    ask = Ask("", Actor("ada", 7), NOON + timedelta(minutes=1), Target("comment", 99))
    asked = Request(repository(), Thread(1, "issue", "A title", None), ask, "")
    policy = Policy(99, "bot[bot]", "bot", "threadtree")
    rules = Rules(agents=("custom",), agent="custom")
    server, of = "https://github.example", (db, Nodes(NODE), thread, 1, folder, None)
    ctx = RequestContext(*of, asked, policy, rules, server, NOON, VERBS)
    return replace(ctx, permission="maintain", silent_until=silent_until)


async def answer(db: Connection, ctx: RequestContext, command: str) -> str:
    """Return what the command is answered with, and what it begins; everything is rolled back."""
    name, _, argument = command.removeprefix("/").partition(" ")
    transaction = db.transaction()
    await transaction.start()
    try:
        before = await db.fetchval("select coalesce(array_agg(id), '{}') from outbox")
        turns_before = await db.fetchval("select count(*) from turns")
        await VERBS.run(ctx, Command(name, argument or None))
        said = [_first_words(row["content"]) for row in await db.fetch(FOUND, before)]
        kinds = await db.fetch("select verb from requests join turns on id = turn_id where not needs_agent")
        later = [LATER[row["verb"]] for row in kinds]
        if not later and await db.fetchval("select count(*) from turns") > turns_before:
            later.append("the request runs again")
        if await db.fetchval("select exists (select from turns where state = 'stopped' or stop_reason is not null)"):
            later.append("**Stopped**")
        face = await db.fetchval("select content from outbox where kind = 'reaction' order by id desc limit 1")
        emoji = {"eyes": "👀", "confused": "😕"}[face]
        if ctx.silent_until is not None and said:
            assert said[0].startswith("The bot has written 30 comments here within an hour")
            return f"{emoji}, and the note"
        return " ".join([*([f"{emoji}, then {' and '.join(later)}."] if later else []), *said]) or emoji
    finally:
        await transaction.rollback()


def _first_words(text: str) -> str:
    """Return the first sentence, or what stands before a list."""
    first = re.split(r"\n\n|\n- |(?<=[.!?]) (?=[A-Z`*])", text, maxsplit=1)[0]
    return first.replace("|", "\\|").replace("\n", " ")


async def test_commands_by_situation(pool: Pool) -> None:
    rows = [["write", *SITUATIONS], *([f"`{command}`"] for command in COMMANDS)]
    async with pool.acquire() as db:
        for name, prepare in SITUATIONS.items():
            transaction = db.transaction()
            await transaction.start()
            world = TurnRows(db)
            worktree = None if name == "nothing was asked yet" else await world.worktree(path="worktrees/a", owner=1)
            conversation = await world.thread(worktree=worktree, number=1)
            await prepare(world, conversation)
            until = NOON + timedelta(minutes=20) if prepare is silent else None
            ctx = context(db, ThreadRef(repository(), conversation), "octo/repo-1", until)
            for row, command in zip(rows[1:], COMMANDS, strict=True):
                row.append(await answer(db, ctx, command))
            await transaction.rollback()
    is_in_the_docs("commands", rows)
