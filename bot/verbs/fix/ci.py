"""Checks of a head that the bot pushed have ended: a turn fixes them, or that is given up, or they pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from bot.ask import Ask
from bot.github.answers import Pull
from bot.github.checks import read_checks
from bot.github.client import PER_PAGE
from bot.github.thread import Checks
from bot.model import Repository, Thread
from bot.node.repository_rules import known_rules
from bot.rules import Rules
from bot.store import conversations, deliveries
from bot.store.database import Connection
from bot.thread import links, thread_comments
from bot.thread import outbox_rows as outbox
from bot.turn.parsing import Request
from bot.turn.queueing import queue_turn
from bot.turn.request import Parts, RequestContext, save_thread
from bot.verbs.fix import rows as fixes
from bot.verbs.fix import words
from bot.verbs.fix.rows import OwnHead

MOST_A_DAY: Final = 20
"""How many attempts there are on a thread in 24 hours at most, whoever asks or pushes meanwhile."""


@dataclass(frozen=True, slots=True)
class Passing:
    """The checks of what a turn pushed to fix them pass, or those that fail do so on the base too. `is_part`: of those
    that the bot may read.
    """

    on_base_too: bool
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class Push:
    """A push to the branch, which has been at the commit `after` since."""

    after: str
    by_person: bool


@dataclass(frozen=True, slots=True)
class Failing:
    """Checks of these names fail, and not on the branch `base`; `attempts` came since a person asked, or pushed.

    `enough`: there are no more, because of those or of those within a day.
    """

    names: tuple[str, ...]
    base: str
    attempts: int
    enough: Literal["attempts", "day"] | None = None
    pull: Pull | None = None
    """The pull request that has the head."""


def judge(
    own: OwnHead,
    most: int,
    head: Checks,
    on_base: frozenset[str] = frozenset(),
    base: str = "",
    pushes: Sequence[Push] = (),
) -> str | Passing | Failing:
    """Return what the checks of the head ask for, where those `on_base` fail on its base too; or why nothing. Pure.

    `pushes` are those to the branch, the newest first.
    """
    if head.running:
        return "checks run"
    if names := tuple(sorted(head.failed - on_base)):
        attempts = attempts_since_a_person(own, pushes)
        of_day: Literal["day"] | None = "day" if own.of_day >= MOST_A_DAY else None
        return Failing(names, base, attempts, "attempts" if attempts >= most else of_day)
    if own.is_fix and head.green:
        return Passing(bool(head.failed), head.is_part)
    return "no check fails that passes on the base"


def attempts_since_a_person(own: OwnHead, pushes: Sequence[Push]) -> int:
    """Return how many attempts came since a person asked, or pushed while one of them ran: for heads pushed later."""
    at = next((at for at, push in enumerate(pushes) if push.by_person), None)
    later = {push.after for push in pushes[:at]}
    return sum(at is None or head in later for head in own.attempts)


async def see_to_checks(parts: Parts, guid: str, repository: Repository, head: str) -> str | None:
    """Look at the checks of the head, and write what follows in one transaction that ends the delivery.

    Return a word for the log, None if the delivery was handled meanwhile. Raises GitHubError.
    """
    key = repository.key
    own = await fixes.own_head(parts.pool, *key, head)
    found: str | Passing | Failing = "no head that the bot pushed last, or something runs there"
    rules = parts.rules
    if own is not None:
        rules = await known_rules(parts.pool, parts.rules, own.repository)
        is_wanted = rules.fixes(own.autofix)
        found = await _look(parts, own, head, rules.max_fix_attempts) if is_wanted else "autofix is off"
    async with parts.pool.acquire() as connection, connection.transaction():
        if not await deliveries.end(connection, guid):
            return None
        if own is None or isinstance(found, str):
            return str(found)
        if await fixes.own_head(connection, *key, head) != own:
            return "the thread has changed meanwhile"
        what = "passing" if isinstance(found, Passing) else "checks"
        if not await conversations.first_seen(connection, fixes.effect(own.repository, head, what)):
            return "seen to before"
        if isinstance(found, Passing):
            line = words.passing(but_for_base=found.on_base_too, is_part=found.is_part)
            await thread_comments.add_line(connection, own.thread_ref, own.turn_id, line)
            return "checks pass"
        await _fix(parts, connection, own, rules, head, found)
        return "checks fail"


async def _look(parts: Parts, own: OwnHead, head: str, most: int) -> str | Passing | Failing:
    """Ask GitHub how the checks of the head ended: that of an open pull request from the repository's own branch."""
    github, repository = parts.github, own.repository
    checks = await read_checks(github, repository, head)
    if checks.running or not (checks.failed or own.is_fix):
        return judge(own, most, checks)
    pulls = await github.pulls_of(repository, own.branch)
    pull = next((one for one in pulls if one.is_open and one.head_sha == head), None)
    if pull is None:
        return "no open pull request has this head"
    on_base, pushes = frozenset[str](), list[Push]()
    if checks.failed:
        tip = (await github.get(repository, "/branches/{branch}", branch=pull.base))["commit"]["sha"]
        on_base = (await read_checks(github, repository, tip)).failed
        pushes = await _pushes(parts, own) if own.met_push else []
    found = judge(own, most, checks, on_base, pull.base, pushes)
    return replace(found, pull=pull) if isinstance(found, Failing) else found


async def _pushes(parts: Parts, own: OwnHead) -> list[Push]:
    """Return the last pushes to the branch, the newest first; none where an older Enterprise Server does not tell.

    A formatter that answers each push of the bot would let it go on for ever, so it matters who pushed.
    https://docs.github.com/rest/repos/repos#list-repository-activities
    """
    path, ref = "/activity{?ref,per_page}", f"refs/heads/{own.branch}"
    found = await parts.github.get_if_there(own.repository, path, ref=ref, per_page=PER_PAGE) or ()
    bots = {parts.policy.bot_id, *parts.policy.allowed_bots}
    people = [(one["after"], one["actor"] or {}) for one in found]
    return [Push(after, who.get("type") == "User" and who["id"] not in bots) for after, who in people]


async def _fix(parts: Parts, connection: Connection, own: OwnHead, rules: Rules, head: str, found: Failing) -> None:
    """Queue a turn for the person who asked last, or say that it was tried often enough."""
    now, most, repository = parts.clock(), rules.max_fix_attempts, own.repository
    commit = head, links.commit_page(f"{parts.server_url}/{repository.full_name}", head)
    per_hour, thread = parts.policy.comments_per_hour, Thread(own.number, own.kind, own.title, None)
    names = found.names
    title, of = f"fixes {', '.join(names)} on {head[:7]}", {"head": head, "checks": names}
    ask = Ask(words.request(head, len(names)), own.ask.by, now, own.ask.target, "fix", title, of=of)
    request = Request(repository, thread, ask, f"checks of {head}")
    where = connection, parts.nodes, own.thread_ref, own.number, own.folder, None
    silent_until = await outbox.silent_until(connection, own.thread_ref.conversation_id, per_hour, now)
    ctx = RequestContext(
        *where, request, parts.policy, rules, parts.server_url, now, parts.verbs, silent_until=silent_until
    )
    if found.pull is not None and found.pull.number != own.number and silent_until is None:
        # GitHub tells it of the pull request, where nobody else answers.
        there = f"{parts.server_url}/{repository.full_name}/issues/{own.number}"
        line = words.worked_on(*commit, names, own.number, there, goes_on=found.enough is None)
        pull = Thread(found.pull.number, "pull", found.pull.title, None)
        await thread_comments.tell(connection, (await save_thread(connection, repository, pull))[0], line)
    if found.enough is None:
        await queue_turn(ctx, ask, words.attempt(*commit, names, found.attempts + 1, most))
    elif silent_until is None and found.enough == "day":
        await ctx.reply(words.enough_for_a_day(*commit, names, own.of_day, found.base))
    elif silent_until is None:
        await ctx.reply(words.gave_up(*commit, names, found.attempts, found.base))
