"""One stored delivery: read it, decide what it asks, and write the consequences in one transaction."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import assert_never

import orjson
import structlog
from structlog.contextvars import bound_contextvars

from bot.ask import Ask, Part, seen
from bot.github.answers import Permission
from bot.github.errors import NotFound, Refused, Transient, Unauthenticated
from bot.github.events import (
    Addressed,
    BlockersChanged,
    ChecksEnded,
    Event,
    Gesture,
    RepositoryDeleted,
    ThreadClosed,
    ThreadReopened,
    Ticked,
    Unreadable,
    Written,
)
from bot.github.payloads import read
from bot.inbox import decider_rows as rows
from bot.inbox import gate, outcomes, pull_news
from bot.inbox.actions import Action, Ignore, action_of, failure_of, is_remark, opened_pull, request_of
from bot.inbox.decider_rows import Delivery
from bot.inbox.pull_news import PullNews
from bot.inbox.repository import in_its_repository
from bot.inbox.review import whole_review
from bot.json_values import parse
from bot.markdown import MarkdownError
from bot.model import Repository, Thread
from bot.node.repository_names import of_this_minute
from bot.node.repository_rules import known_rules
from bot.prompt.hidden import strip_hidden
from bot.store import conversations, deliveries, turns
from bot.store.conversations import Standing
from bot.store.database import DATABASE_AWAY, Connection, retry_on_unique_violation
from bot.store.engine import MAX_STALLS, RETRY_FOR_SECONDS, RetryLaterError, backoff_seconds
from bot.tasks import concurrently
from bot.thread import boxes, replies, thread_comments, worktree_replies
from bot.thread import outbox_rows as outbox
from bot.thread.authority import Allowed, Denied
from bot.turn import blocked
from bot.turn import request_rows as requests
from bot.turn.assign_worktree import assign_worktree_for_operator, look_up_pull_request
from bot.turn.choose_worktree import PullRequestHead
from bot.turn.confirm import RETRY, NotConfirmedError
from bot.turn.may_ask import may_ask
from bot.turn.parsing import Command, CommentParser, ParsedComment, Request
from bot.turn.pull_request_rows import check_no_more, check_soon, is_own_pull
from bot.turn.queueing import request_agent
from bot.turn.request import Parts, RequestContext, Verbs, Write, save_thread
from bot.turn.request_rows import Channel
from bot.verbs import standing
from bot.verbs.fix.ci import see_to_checks
from bot.verbs.stop import close, close_all, reopen

_RETRIED: tuple[type[BaseException], ...] = (Transient, Unauthenticated, *DATABASE_AWAY)
_PATIENCE = timedelta(seconds=RETRY_FOR_SECONDS)
REFUSED_TRIES = 3
FORGOTTEN_AFTER = timedelta(days=365)
"""So long the keys of effects are kept: what is older may have been done."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CreateWorktree:
    """The worktree of the thread `owner/name#number` is to be made."""

    owner: str
    name: str
    number: int
    channel: Channel


@dataclass(frozen=True, slots=True)
class GitHubFacts:
    """Answers from GitHub that are needed before the transaction. `ask` is the request to the agent, if there is one.

    `pull` is None for an issue and where no turn may start, `thread` where the agent is asked nothing, and where the
    thread is surely open.
    """

    ask: Ask | None = None
    part: Part | None = None
    """The part of a review that asks it."""
    pull: PullRequestHead | None = None
    thread: Thread | None = None
    permission: Permission | None = None
    """The author's, None of a bot."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What GitHub confirms of a delivery, and who may ask it. `denied`: why the person may not.

    `permission` is the author's, None of a bot; `standing` is known of a request.
    """

    action: Action | ChecksEnded | CreateWorktree
    denied: Denied | None = None
    permission: Permission | None = None
    standing: Standing | None = None


@dataclass(frozen=True)
class Decider(Parts):
    """A handler of deliveries; the lock of the job serializes those of one conversation."""

    @cached_property
    def _parser(self) -> CommentParser:
        return CommentParser(
            self.policy.bot_name, self.verbs.commands.values(), bare_commands=self.policy.bare_commands
        )

    @cached_property
    def _strict_parser(self) -> CommentParser:
        """The parser for repositories that want the mention before each command."""
        return CommentParser(self.policy.bot_name, self.verbs.commands.values(), bare_commands=False)

    async def decide(self, guid: str, attempts: int) -> None:
        """Handle the delivery, unless it was handled. Raises RetryLaterError for a problem that passes."""
        try:
            async with self.pool.acquire() as connection:
                delivery = await rows.load(connection, guid)
            if delivery is None:
                return
            about = {"conversation": delivery.conversation} if delivery.conversation else {}
            with bound_contextvars(delivery=guid, github_event=delivery.event, **about):
                await self._handle(delivery, attempts)
        except DATABASE_AWAY as problem:
            # Its row does not say that it ended, so it has not.
            raise RetryLaterError(backoff_seconds(attempts), _named(problem)) from problem

    async def stalled(self, guid: str, job_id: int) -> None:
        """Count that a worker died while it handled the delivery; after MAX_STALLS times end the delivery, with a word
        on its thread if that is known.

        Its body is not read: it may be what kills them.
        """
        error = f"The worker that handled it died {MAX_STALLS} times."
        async with self.pool.acquire() as connection, connection.transaction():
            if (await rows.count_stall(connection, guid, job_id) or 0) < MAX_STALLS:
                return
            await deliveries.end(connection, guid, error)
            if (thread := await rows.thread_of(connection, guid)) is not None:
                await thread_comments.decline(connection, *thread, replies.delivery_failed(guid))
        _log.error("delivery-given-up", delivery=guid)

    async def _handle(self, delivery: Delivery, attempts: int) -> None:
        """Carry out what the delivery asks, or end it as failed. Raises RetryLaterError for a problem that passes."""
        asked: Request | None = None
        try:
            event, action = await self._action(delivery)
            action = await in_its_repository(self.pool, self.github, action)
            if event is not None and isinstance(action, Request):
                event = replace(event, repository=action.repository)
            asked = action if isinstance(action, Request) else None
            confirmed = await self._confirmed(event, action)
            asked = confirmed.action if isinstance(confirmed.action, Request) else None
            may = asked is not None and confirmed.denied is None
            news = await pull_news.news_of(self, event, asked.ask if asked is not None and may else None)
            opened, writes = opened_pull(event), tuple[Write, ...]()
            if opened is not None:
                writes = await self.verbs.at_opening(self, *opened, asked.ask if asked is not None and may else None)
            outcome = await retry_on_unique_violation(self._carry_out, delivery, confirmed, news, writes)
            _log.info("decided", outcome=outcome or "handled already")
        except Exception as problem:
            if (wait := self._wait(problem, delivery, attempts)) is not None:
                _log.warning("delivery-waits", seconds=round(wait), problem=_named(problem))
                await rows.record_attempt(self.pool, delivery.guid, _named(problem))
                raise RetryLaterError(wait, _named(problem)) from problem
            async with self.pool.acquire() as connection, connection.transaction():
                if await deliveries.end(connection, delivery.guid, _named(problem)) and asked is not None:
                    waited = isinstance(problem, _RETRIED)
                    await _decline(connection, asked, replies.delivery_failed(delivery.guid, waited=waited))
            if isinstance(problem, (NotFound, Refused, *_RETRIED)):
                # No bug: the repository was deleted, the bot lacks a right, or GitHub was away for a day.
                _log.warning("delivery-failed", problem=_named(problem))
            else:
                _log.exception("delivery-failed")

    def _wait(self, problem: Exception, delivery: Delivery, attempts: int) -> float | None:
        """Return after how many seconds the delivery is tried again, None where that is of no use."""
        passes = isinstance(problem, _RETRIED) and self.clock() - delivery.received_at < _PATIENCE
        # A right that an admin is changing, an allow list.
        may_pass = isinstance(problem, Refused) and problem.status == 403 and attempts < REFUSED_TRIES
        if not passes and not may_pass:
            return None
        return getattr(problem, "retry_after_seconds", None) or backoff_seconds(attempts)

    async def _action(self, delivery: Delivery) -> tuple[Event | None, Action | ChecksEnded | CreateWorktree]:
        """Return what the delivery says that happened, None of what an operator or a file asks, and what that asks."""
        if delivery.event == rows.OPERATOR_EVENT:
            async with self.pool.acquire() as connection:
                return None, await _read_operator(connection, delivery)
        if delivery.event == standing.EVENT:
            asked = await standing.due_request(self, delivery.guid, delivery.body)
            return None, Ignore(asked) if isinstance(asked, str) else asked
        event = await asyncio.to_thread(lambda: read(delivery.event, parse(delivery.body), self.platform))
        if event is None:
            return None, Ignore("unused")
        if isinstance(event, Unreadable):
            return None, failure_of(event, self.policy, self._parser)
        return event, await self._asked(event)

    async def _asked(self, event: Event) -> Action | ChecksEnded:
        on_own_pull = is_remark(event) and await self._is_on_own_pull(event)
        # The worst Markdown of a full comment takes a second, and any account can write it.
        asked = partial(action_of, event, self.policy, on_own_pull=on_own_pull)
        action = await asyncio.to_thread(asked, self._parser)
        if isinstance(action, Request) and action.commands:
            parser = await self._parser_for(action.repository)
            if parser is not self._parser:
                return await asyncio.to_thread(asked, parser)
        return action

    async def _confirmed(self, event: Event | None, action: Action | ChecksEnded | CreateWorktree) -> Confirmed:
        """Compare with GitHub what is asked, and whether the person may ask it. Raises GitHubError.

        What GitHub does not confirm is nothing, and nobody hears of it: the person who is named did nothing.
        """
        try:
            match action:
                case Request() if event is not None:
                    return await self._confirmed_request(event, action)
                case ThreadClosed():
                    if action.thread.kind == "pull" or await self._is_known(action):
                        action = await gate.confirmed_close(self.github, self.sleep, action)
                case ThreadReopened():
                    if action.thread.kind == "pull" or await self._is_known(action):
                        action = await gate.confirmed_reopening(self.github, self.sleep, action)
                case Ticked():
                    action = await self._ticked(action)
                case BlockersChanged(repository=repository, number=number):
                    known = await blocked.waits_of(self.pool, repository, number)
                    await gate.confirmed_blockers(self.github, self.sleep, action, known)
                case Unreadable(addressed=Addressed() as found):
                    async with concurrently(self._may_ask(found)) as verdict:
                        found, node_id = await gate.confirmed_addressed(self.github, self.sleep, found)
                        may = await verdict
                    if not await self._is_news(found, node_id):
                        raise NotConfirmedError("the text asks nothing, or another delivery of it was handled")
                    denied = may if isinstance(may, Denied) else None
                    return Confirmed(replace(action, addressed=found), denied)
                case _:
                    pass
        except NotConfirmedError as problem:
            _log.warning("not-confirmed", problem=problem.reason)
            if not isinstance(action, Unreadable):
                return Confirmed(Ignore(f"not confirmed: {problem.reason}"))
            return Confirmed(replace(action, addressed=None))
        if isinstance(action, Request):
            may = await self._may_ask(action)
            async with self.pool.acquire() as connection:
                standing = await conversations.standing(connection, action.repository, action.thread.number)
            return _judged(action, may, standing)
        return Confirmed(action)

    async def _is_news(self, found: Addressed, node_id: str) -> bool:
        """Return whether the text addresses the bot, and nothing that it asks was done or refused."""
        if not await asyncio.to_thread(self._parser.addresses, found.body):
            return False
        try:
            parsed = await asyncio.to_thread(self._parser.parse, found.body)
        except MarkdownError:
            parsed = ParsedComment()
        ask = Ask(found.body, found.author, self.clock(), found.target)
        place = found.repository, found.thread
        request = Request(*place, ask, node_id, names=parsed.names, mentions=parsed.mentions)
        return not await rows.any_seen(self.pool, [*request.effects, *request.asking])

    async def _is_known(self, event: ThreadClosed | ThreadReopened) -> bool:
        """Return whether the bot was ever addressed on the thread, or a request of another one waits for it: else its
        state is nothing to the bot.
        """
        place = event.repository, event.thread.number
        async with self.pool.acquire() as connection:
            is_known = await conversations.find_conversation(connection, *place) is not None
        return is_known or await blocked.is_waited_for(self.pool, blocked.name_of(*place))

    async def _confirmed_request(self, event: Event, said: Request) -> Confirmed:
        """Return the request as GitHub shows it, while the permission of who is said to ask is looked up.

        What is known of the thread is from GitHub, too: where its row does not tell it, the thread is read.
        """
        async with self.pool.acquire() as connection:
            standing = await conversations.standing(connection, said.repository, said.thread.number)
        async with concurrently(self._may_ask(said)) as verdict, concurrently(self._names(said)) as names:
            if isinstance(event, Gesture):
                shown: Event = await gate.confirmed_gesture(self.github, self.sleep, event)
            elif isinstance(event, Written):
                is_known = (standing.kind, standing.title) == (said.thread.kind, said.thread.title)
                is_open = not said.asks or _is_open(said, standing)
                own_by_row = not said.on_own_pull or await is_own_pull(self.pool, *_place(said))
                with_thread = not (is_known and is_open and own_by_row)
                shown = await gate.confirmed_written(self.github, self.sleep, event, with_thread=with_thread)
            else:
                raise TypeError(event)
            action = said if shown == event else await self._asked(shown)
            if isinstance(action, Request) and not said.asks:
                action = replace(action, asks=False)  # what an edit has added since is asked by its own delivery
            if not isinstance(action, Request):
                return Confirmed(action if isinstance(action, Ignore) else Ignore("not confirmed: another text"))
            if action.author.id != said.author.id:
                raise NotConfirmedError("somebody else asks")
            if action.ask.at < self.clock() - FORGOTTEN_AFTER:
                raise NotConfirmedError("it was asked too long ago")
            if action.is_remark and action.thread.closed_at is not None:
                return Confirmed(Ignore("a remark on a closed pull request"))
            may = await verdict
            await names
        if action.author != said.author:
            may = await self._may_ask(action)
        return _judged(action, may, standing)

    async def _ticked(self, event: Ticked) -> Request | Ignore:
        """Return what the person ticked by GitHub's word."""
        shown = await gate.confirmed_tick(self.github, self.sleep, event, self.policy.bot_id)
        if shown.remark.updated_at < self.clock() - FORGOTTEN_AFTER:
            raise NotConfirmedError("it was asked too long ago")
        action = request_of(shown, self.verbs.boxes)
        if isinstance(action, Request):
            await self._names(action)
        return action

    async def _is_on_own_pull(self, event: Written) -> bool:
        """Return whether the bot opened the pull request, as rows know, or by GitHub's word."""
        opened = event.opened
        by_bot = opened is not None and self.policy.is_own(opened.author, opened.body)
        return by_bot or await is_own_pull(self.pool, event.repository, event.thread.number)

    async def _parser_for(self, repository: Repository) -> CommentParser:
        rules = await known_rules(self.pool, self.rules, repository)
        return self._parser if rules.bare_commands == self.policy.bare_commands else self._strict_parser

    async def _carry_out(
        self, delivery: Delivery, confirmed: Confirmed, news: PullNews | None, writes: Sequence[Write]
    ) -> str | None:
        """Look up what the action needs, then write everything in one transaction; return a word for the log.

        None if the delivery was handled meanwhile.
        """
        action, denied = confirmed.action, confirmed.denied
        if isinstance(action, CreateWorktree):
            return await self._create(delivery, action)
        if isinstance(action, ChecksEnded):
            return await see_to_checks(self, delivery.guid, action.repository, action.head)
        if isinstance(action, RepositoryDeleted) and await self._is_there(action.repository):
            action = Ignore("the repository is there")
        # Anybody's closing counts.
        asked = action.addressed if isinstance(action, Unreadable) else action if isinstance(action, Request) else None
        facts = GitHubFacts()
        if isinstance(action, Request) and confirmed.standing is not None and denied is None:
            facts = await self._look_up(action, confirmed.standing)
            facts = replace(facts, permission=confirmed.permission)
        error = action.why if isinstance(action, Unreadable) else None
        async with self.pool.acquire() as connection, connection.transaction():
            if not await deliveries.end(connection, delivery.guid, error):
                return None
            if news is not None:
                await pull_news.record(connection, news, notifies=self.notifies)
            if asked is not None and denied is not None:
                await self._turn_away(connection, asked, denied)
                outcome = f"denied: {denied.why}"
            else:
                outcome = await self._write(connection, delivery.guid, action, facts)
            for write in writes:
                await write(connection)
            return outcome

    async def _create(self, delivery: Delivery, wanted: CreateWorktree) -> str | None:
        """Assign the worktree and queue its creation, or end the delivery as failed where there is no such thread."""
        worktree_id, problem = None, None
        try:
            repository = await self.github.repository(self.platform, wanted.owner, wanted.name)
            here = replace(self.nodes, timeout_seconds=None)
            assigned = await assign_worktree_for_operator(
                self.pool, self.github, here, self.clock, repository, wanted.number
            )
            worktree_id = assigned.worktree_id
        except (NotFound, Refused):
            problem = worktree_replies.no_such_thread(f"{wanted.owner}/{wanted.name}", wanted.number)
        async with self.pool.acquire() as connection, connection.transaction():
            if not await deliveries.end(connection, delivery.guid, problem):
                return None
            if worktree_id is not None:
                words = f"worktrees create {wanted.owner}/{wanted.name}#{wanted.number}"
                asked = "create", words, requests.operator(wanted.channel)
                turn = await requests.enqueue_for_operator(connection, worktree_id, *asked, self.clock())
                await rows.note_turn(connection, delivery.guid, turn)
        return problem or "accepted"

    async def _write(self, connection: Connection, guid: str, action: Action, facts: GitHubFacts) -> str:
        match action:
            case Request():
                await self.handle_request(connection, action, facts)
                return "accepted"
            case Unreadable(why=why, addressed=addressed):
                if addressed is not None:
                    await _decline(connection, addressed, replies.delivery_unreadable(guid))
                return f"unreadable: {why}"
            case ThreadClosed(repository=repository, thread=thread, at=at, pull=pull, reverts=reverts):
                if thread.kind == "pull":
                    await check_no_more(connection, repository, thread.number)
                    # Where it was merged, others may conflict now.
                    await check_soon(connection, repository, self.clock(), None)
                if pull is not None:
                    await outcomes.record_outcome(connection, repository, pull, at)
                if reverts is not None:
                    await outcomes.record_revert(connection, repository, reverts, thread.number)
                await close(connection, self.verbs, self.server_url, repository, thread.number, at, self.clock())
                await blocked.wake_behind(connection, blocked.name_of(repository, thread.number))
                return "closed"
            case ThreadReopened(repository=repository, thread=thread, at=at):
                await outcomes.forget_outcome(connection, repository, thread.number, at)
                await check_soon(connection, repository, self.clock(), thread.number)
                await reopen(connection, repository, thread.number, at)
                await blocked.wake_behind(connection, blocked.name_of(repository, thread.number))
                return "reopened"
            case BlockersChanged(repository=repository, number=number):
                await blocked.wake(connection, repository, number)
                return "blockers changed"
            case RepositoryDeleted(repository=repository):
                await close_all(connection, self.verbs, self.server_url, repository, self.clock())
                return "repository deleted"
            case Ignore(why=why):
                return why
            case Ticked():
                raise TypeError(action)  # by now it is a request, or nothing
            case _:
                assert_never(action)

    async def handle_request(self, connection: Connection, request: Request, facts: GitHubFacts) -> None:
        """Run the commands in order, then queue one turn for the rest; each only if it was not done before."""
        thread_ref, folder = await save_thread(connection, request.repository, request.thread)
        if facts.thread is not None:
            await conversations.set_state(connection, thread_ref.conversation_id, facts.thread.closed_at)
        now, silent_until = self.clock(), None
        if not request.is_operators:
            most = self.policy.comments_per_hour
            silent_until = await outbox.silent_until(connection, thread_ref.conversation_id, most, now)
        rules = await known_rules(connection, self.rules, request.repository)
        thread = (connection, self.nodes, thread_ref, request.thread.number, folder, facts.pull)
        of = (self.policy, rules, self.server_url, now, self.verbs)
        ctx = RequestContext(*thread, request, *of, facts.permission, silent_until)
        if request.ticks == "changed":
            await ctx.reply(boxes.CHANGED)
        for command, effect in zip(request.commands, request.effects, strict=True):
            if await conversations.first_seen(connection, effect):
                await self.verbs.run(ctx, command)
        if facts.ask is not None and await _is_first(connection, request) and await ctx.take_ticks():
            await request_agent(ctx, facts.ask, facts.part)

    async def _may_ask(self, asked: Request | Addressed) -> Allowed | Denied:
        rules = await known_rules(self.pool, self.rules, asked.repository)
        about = (self.github, self.policy, asked.author, asked.repository)
        return await may_ask(*about, allowed=rules.allowed)

    async def _turn_away(self, connection: Connection, asked: Request | Addressed, denied: Denied) -> None:
        """Tell a person who turned to the bot and may not; a bot hears nothing at all."""
        if isinstance(asked, Request):
            # Once denied, always denied: what arrives again under another GUID asks for nothing.
            for effect in (*asked.effects, *asked.asking):
                await conversations.first_seen(connection, effect)
        if isinstance(asked, Request) and asked.ticks:
            if denied.visible:
                thread_ref, _ = await save_thread(connection, asked.repository, asked.thread)
                words = replies.may_not_tick(asked.author.login, denied.why)
                await thread_comments.answer_ticks(connection, thread_ref, asked.target, words)
            return
        if denied.visible and (not isinstance(asked, Request) or asked.addresses_bot):
            thread_ref, _ = await save_thread(connection, asked.repository, asked.thread)
            person, words = asked.author, replies.may_not_ask(asked.author.login, denied.why)
            await thread_comments.turn_away(connection, thread_ref, asked.target, person.id, words, self.clock())

    async def _is_there(self, repository: Repository) -> bool:
        """Return whether GitHub still shows the repository."""
        try:
            await self.github.by_id(repository)
        except NotFound:
            return False
        return True

    async def _names(self, request: Request) -> None:
        """Let the row have GitHub's names before a turn is queued, which git fetches by; they are seldom asked for."""
        if request.asks or _queues_turn(self.verbs, request):
            await of_this_minute(self.pool, self.github, request.repository)

    async def _look_up(self, request: Request, standing: Standing) -> GitHubFacts:
        """Ask GitHub what the request's turn needs. A request to the agent gets its 👀 before."""
        if not request.asks and not _queues_turn(self.verbs, request):
            return GitHubFacts()  # other commands are answered at once and wait for nothing
        if request.asks and (request.thread.kind == "pull" or not _is_open(request, standing)):
            async with self.pool.acquire() as connection, connection.transaction():
                thread_ref, _ = await save_thread(connection, request.repository, request.thread)
                await thread_comments.acknowledge(connection, thread_ref, request.target, request.author.id)
        async with concurrently(self._pull(request, standing)) as pull:
            ask, part = await self._ask(request) if request.asks else (None, None)
            is_news = request.asks and not _is_open(request, standing)
            return GitHubFacts(ask, part, await pull, request.thread if is_news else None)

    async def _pull(self, request: Request, standing: Standing) -> PullRequestHead | None:
        if request.thread.kind != "pull":
            return None
        repository, number, choosing = request.repository, request.thread.number, not standing.has_worktree
        return await look_up_pull_request(self.github, repository, number, self.clock, self.sleep, choosing=choosing)

    async def _ask(self, request: Request) -> tuple[Ask, Part | None]:
        if request.review_id is not None:
            parser = await self._parser_for(request.repository)
            return await whole_review(self.github, self.sleep, parser, request, request.review_id)
        ask = request.ask
        if ask.target.id is not None:
            return ask, None
        # A label or an assignment asks for what a person sees already.
        shown = ask.text if ask.gesture is not None else await asyncio.to_thread(strip_hidden, ask.text)
        return replace(ask, seen=seen(shown)), None


async def _read_operator(connection: Connection, delivery: Delivery) -> Request | CreateWorktree:
    """Return what the operator asks. A request is asked again on the authority of the person who wrote it."""
    asked = orjson.loads(delivery.body)
    if "turn" not in asked:
        full_name, _, number = asked["conversation"].rpartition("#")
        owner, _, name = full_name.partition("/")
        return CreateWorktree(owner, name, int(number), asked.get("channel", "API"))
    if (turn := await turns.of_thread(connection, asked["turn"])) is None:
        raise LookupError(f"turn {asked['turn']} is of no thread")
    about = turn.conversation
    return Request(
        turn.thread_ref.repository,
        Thread(about.number, about.kind, about.title, about.closed_at),
        Ask("", turn.ask.by, delivery.received_at, turn.ask.target),
        identity=delivery.guid,
        commands=(Command(RETRY),),
        names=(RETRY,),
        is_operators=True,
    )


def _named(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


async def _decline(connection: Connection, asked: Request | Addressed, words: str) -> None:
    """Tell the thread that the request cannot be done: 😕 and one sentence."""
    thread_ref, _ = await save_thread(connection, asked.repository, asked.thread)
    await thread_comments.decline(connection, thread_ref, asked.target, words)


async def _is_first(connection: Connection, request: Request) -> bool:
    """Return whether the text never asked for a turn before, or an edit has added a mention since."""
    *fewer, own = request.asking
    if not await conversations.first_seen(connection, own):
        return False
    for effect in fewer:
        await conversations.first_seen(connection, effect)
    return True


def _judged(request: Request, verdict: Allowed | Denied, standing: Standing) -> Confirmed:
    if isinstance(verdict, Denied):
        return Confirmed(request, denied=verdict)
    return Confirmed(request, permission=verdict.permission, standing=standing)


def _place(request: Request) -> tuple[Repository, int]:
    return request.repository, request.thread.number


def _is_open(request: Request, standing: Standing) -> bool:
    """Return whether the thread is surely open, as far as is known without GitHub."""
    return request.thread.closed_at is None and standing.is_surely_open


def _queues_turn(verbs: Verbs, request: Request) -> bool:
    named = [command.name for command in request.commands if isinstance(command, Command)]
    return any(verbs.commands[name].queues_turn for name in named)
