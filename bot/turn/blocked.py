"""A request on an issue waits for the issues that block it on GitHub (DESIGN.md §4, Without a person).

GitHub is asked whenever the turn could begin, and at least each hour. Closes and changed relations only wake the turn.
"""

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta

from bot.github.answers import Blocker
from bot.github.client import GitHub
from bot.model import Repository
from bot.store.database import Connection, Pool, statement
from bot.store.jobs import WORK_WAITS
from bot.thread.formatting import format_count, url_target
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import Blocked, MustWaitError, Wait

AGAIN = timedelta(hours=1)
SOON = timedelta(minutes=1)
"""After a first look, and after one that an event made: GitHub may have shown the state from before that."""
MOST_ASKED = 10
"""So many issues are asked whether they wait for this one in turn: a longer circle is not seen."""
_NOT_DONE = {"not_planned": "not planned", "duplicate": "a duplicate"}


async def hold(run: TurnRun) -> None:
    """Raise MustWaitError while the turn has to wait for other issues, or for a word about them. Raises GitHubError."""
    ctx, turn = run.ctx, run.turn
    begun = turn.so_far.agent is not None or turn.so_far.answer is not None
    if begun or not run.kind.waits_for_blockers or turn.conversation.kind != "issue":
        return
    if await _is_started(ctx.pool, turn.conversation.id):
        return
    repository, number = turn.worktree.repository, turn.conversation.number
    blockers, unseen = await ctx.github.blockers(repository, number)
    circle = await _circle(ctx.github, repository, number, blockers)
    waiting = waits_for([one for one in blockers if one not in circle])
    if waiting:
        words, asks = _waiting(waiting, repository, ctx.server_url), not waiting[0].is_open
        names = tuple(one.name for one in waiting)
        pause = AGAIN if turn.so_far.was_put_back else SOON
        raise MustWaitError(Wait(Blocked(words, names, asks), ctx.clock() + pause))
    if circle:
        run.notices.append(_in_circle(circle, repository, number, ctx.server_url))
    if unseen:
        run.notices.append(_not_seen(unseen))


def waits_for(blockers: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """Return those that are open; where none is, those that were closed without being done: a person is asked then."""
    is_open = tuple(one for one in blockers if one.is_open)
    return is_open or tuple(one for one in blockers if one.reason in _NOT_DONE)


def name_of(repository: Repository, number: int) -> str:
    """Return the name of an issue as in `Blocker.name`."""
    return f"{repository.full_name}#{number}".lower()


async def _circle(
    github: GitHub, repository: Repository, number: int, blockers: Sequence[Blocker]
) -> tuple[Blocker, ...]:
    """Return the open blockers that wait for the issue in turn, as far as MOST_ASKED issues of its repository tell."""
    own = name_of(repository, number)

    def here(found: Sequence[Blocker]) -> dict[str, int]:
        return {one.name: one.number for one in found if one.is_open and one.name == name_of(repository, one.number)}

    behind: dict[str, Collection[str]] = {}
    following = here(blockers)
    while (new := {name: at for name, at in following.items() if name not in behind and name != own}) and (
        left := MOST_ASKED - len(behind)
    ) > 0:
        asked = list(new.items())[:left]
        found = [
            here(theirs) for theirs, _ in await asyncio.gather(*(github.blockers(repository, at) for _, at in asked))
        ]
        behind |= {name: theirs for (name, _), theirs in zip(asked, found, strict=True)}
        following = {name: at for theirs in found for name, at in theirs.items()}

    def leads_back(name: str) -> bool:
        seen, left = set[str](), [name]
        while left:
            if (one := left.pop()) == own:
                return True
            if one not in seen:
                seen.add(one)
                left += behind.get(one, ())
        return False

    return tuple(one for one in blockers if one.is_open and leads_back(one.name))


# Words


def _waiting(waiting: Sequence[Blocker], repository: Repository, server_url: str) -> str:
    links, several = _links(waiting, repository, server_url), len(waiting) > 1
    if waiting[0].is_open:
        then = f"It starts when {'those are' if several else 'that is'} closed."
        return f"Waiting for {links} (blocked by). {then} `/start` begins it at once, `/stop` ends the wait."
    how = " and as ".join(dict.fromkeys(_NOT_DONE[one.reason or ""] for one in waiting))
    blocks, was = ("which block this issue,", "were") if several else ("which blocks this issue,", "was")
    return (
        f"Waiting for your answer: {links}, {blocks} {was} closed as {how}. `/start` begins this all the same, "
        "`/stop` ends it."
    )


def _in_circle(circle: Sequence[Blocker], repository: Repository, number: int, server_url: str) -> str:
    if any(one.name == name_of(repository, number) for one in circle):
        return "This issue is blocked by itself, so the bot did not wait for it."
    links = _links(circle, repository, server_url)
    are, them = ("are", "them") if len(circle) > 1 else ("is", "it")
    return f"{links} {are} blocked by this issue in turn, so the bot did not wait for {them}."


def _not_seen(number: int) -> str:
    blocks = "blocks" if number == 1 else "block"
    return f"{format_count(number, 'issue')} that the bot may not see {blocks} this one. It did not wait for that."


def _links(issues: Sequence[Blocker], repository: Repository, server_url: str) -> str:
    shown = []
    for one in issues:
        where = "" if one.name == name_of(repository, one.number) else one.repository
        shown.append(f"[{where}#{one.number}]({url_target(f'{server_url}/{one.repository}/issues/{one.number}')})")
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


# Rows


@statement("""select exists (select from requests where conversation_id = $1 and ask @> '{"starts": true}')""")
async def _is_started(connection: Pool, conversation_id: int) -> bool:
    """Return whether somebody said that the thread's requests do not wait for other issues."""


@statement("""
select unnest(t.blocked_by) from turns t join conversations c on c.id = t.conversation_id
where (c.platform, c.repository_id, c.number) = ($1, $2, $3) and t.state = 'queued' and t.blocked_by is not null
""")
async def waits_of(connection: Pool, repository: Repository, number: int) -> set[str]:
    """Return the names of the issues for which a request of the thread waits."""


@statement(
    "select exists (select from turns where state = 'queued' and blocked_by is not null and blocked_by @> array[$1])"
)
async def is_waited_for(connection: Pool, name: str) -> bool:
    """Return whether a request waits for the issue of this name."""


@statement(f"""
with woken as (
    update turns set not_before = null
    where state = 'queued' and blocked_by is not null and blocked_by @> array[$1] returning queue_node
)
select pg_notify('{WORK_WAITS}', queue_node) from (select distinct queue_node from woken) nodes
""")  # noqa: S608 - of a constant
async def wake_behind(connection: Connection, name: str) -> None:
    """Let GitHub be asked again about each request that waits for the issue of this name."""


@statement(f"""
with woken as (
    update turns t set not_before = null from conversations c
    where c.id = t.conversation_id and (c.platform, c.repository_id, c.number) = ($1, $2, $3)
      and t.state = 'queued' and t.blocked_by is not null returning t.queue_node
)
select pg_notify('{WORK_WAITS}', queue_node) from woken
""")  # noqa: S608 - of a constant
async def wake(connection: Connection, repository: Repository, number: int) -> None:
    """Let GitHub be asked again about the request of this issue that waits for others."""
