"""From an event to what it asks of the bot, before its author's permission is looked up. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from bot.ask import Ask
from bot.github.events import (
    Addressed,
    BlockersChanged,
    ChecksEnded,
    Event,
    Gesture,
    PullReady,
    RepositoryDeleted,
    ThreadClosed,
    ThreadReopened,
    Ticked,
    Unreadable,
    Written,
)
from bot.markdown import MarkdownError
from bot.model import Actor, Repository, Target
from bot.thread import boxes
from bot.thread.authority import Policy
from bot.thread.formatting import plain
from bot.turn.parsing import REVIEW, Command, CommentParser, ParsedComment, Request


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing for the bot; `why` goes to the log."""

    why: str


Action = Ignore | Unreadable | ThreadClosed | ThreadReopened | BlockersChanged | RepositoryDeleted | Ticked | Request


def is_remark(event: Event | Unreadable) -> TypeGuard[Written]:
    """Return whether it is a new review, or inline comment, on an open pull request: on the bot's it asks something.

    The text of an approval asks nothing.
    """
    if not isinstance(event, Written) or event.thread.closed_at is not None:
        return False
    return event.review_id is not None and not event.approves


def opened_pull(event: Event | None) -> tuple[Repository, int] | None:
    """Return the pull request that was opened, or is ready for review by now, as the payload names it."""
    is_opening = isinstance(event, Written) and event.body_before is None and event.remark.target == Target("pull")
    if event is None or not (is_opening or isinstance(event, PullReady)):
        return None
    return (event.repository, event.thread.number) if isinstance(event, Written | PullReady) else None


def action_of(
    event: Event, policy: Policy, parser: CommentParser, *, on_own_pull: bool = False
) -> Action | ChecksEnded:
    """Return what one event asks for; a text that no parser reads is told on the thread if it names the bot.

    `on_own_pull`: it `is_remark` on a pull request that the bot opened.
    """
    if isinstance(event, ThreadClosed | ThreadReopened | BlockersChanged | RepositoryDeleted | ChecksEnded):
        return event
    if isinstance(event, Written) and _may_tick(event, policy):
        return Ticked(event.repository, event.sender, event.thread, event.remark)
    if isinstance(event, PullReady):
        return Ignore("nothing asked")
    if (why := _why_ignored(event, policy)) is not None:
        return Ignore(why)
    try:
        if isinstance(event, Gesture) and _asks_for_review(event, policy):
            parsed = ParsedComment(request=REVIEW, verb="review")
        elif isinstance(event, Gesture):
            parsed = parser.parse_labeled(event.remark.body)
        else:
            parsed = parser.parse(event.remark.body, event.body_before or "", on_own_pull=on_own_pull)
    except MarkdownError as problem:
        return failure_of(Unreadable(f"its Markdown: {problem}", _addressed(event)), policy, parser)
    if not parsed:
        return Ignore("nothing asked")
    agent = policy.agent_of_label(event.label) if isinstance(event, Gesture) else None
    return _request(event, parsed, agent or None, on_own_pull=on_own_pull)


def _may_tick(event: Written, policy: Policy) -> bool:
    """Return whether a person, as the payload says, edited a comment of the bot's that has a ticked box."""
    remark = event.remark
    is_bots = remark.target.kind in ("comment", "review-comment") and policy.is_own(remark.author, remark.body)
    is_edit = event.body_before is not None and event.sender.id != policy.bot_id
    return is_bots and is_edit and boxes.may_have_ticks(remark.body)


def request_of(event: Ticked, commands: Mapping[str, str]) -> Request | Ignore:
    """Return what an edit asks that GitHub has confirmed: the names of the commands are by the words of their boxes."""
    found = boxes.ticked(event.posted, event.before, event.remark.body, event.now)
    if found == ():
        return Ignore("no box was ticked")
    chosen = tuple(box for box in boxes.boxes_of(event.now) if found and box.is_ticked)
    names = tuple(commands[box.words] for box in found or () if not box.question and box.words in commands)
    open_questions = {box.question for box in boxes.boxes_of(event.now)} - {box.question for box in chosen}
    # Who ticks the first of several questions asks nothing yet, and is told if they may not.
    asks = bool(found) and not names and not open_questions
    words = "\n".join(f"> {plain(box.question)}\n\n{plain(box.words)}\n" for box in chosen) if asks else ""
    at = (event.sender, event.remark.updated_at, event.remark.target)
    return Request(
        repository=event.repository,
        thread=event.thread,
        ask=Ask(words.strip(), *at, gesture=event.edit_id),
        identity=event.edit_id,
        commands=tuple(map(Command, names)),
        names=names,
        asks=asks,
        ticks="changed" if found is None else "as posted",
        chosen=chosen,
    )


def failure_of(unreadable: Unreadable, policy: Policy, parser: CommentParser) -> Unreadable:
    """Return the failure, which is told on the thread only if the text, label or assignment addresses the bot."""
    found = unreadable.addressed
    if found is None or policy.is_own(found.author, found.body):
        return replace(unreadable, addressed=None)
    is_addressed = (
        parser.addresses(found.body)
        or policy.agent_of_label(found.label) is not None
        or found.assignee_id == policy.bot_id
        or _asks_for_review(found, policy)
    )
    return unreadable if is_addressed else replace(unreadable, addressed=None)


def _why_ignored(event: Written | Gesture, policy: Policy) -> str | None:
    """Return why the event is nothing for the bot, whatever the text says."""
    if isinstance(event, Gesture) and not _asks_for_review(event, policy):
        if event.reviewer_id is not None:
            return "another reviewer"
        if event.assignee_id is None and policy.agent_of_label(event.label) is None:
            return "another label"
        if event.assignee_id is not None and event.assignee_id != policy.bot_id:
            return "another assignee"
    if isinstance(event, Gesture):
        return "the bot's own label or assignment" if policy.is_own(event.sender, "") else None
    # An edit of a comment of the bot's own asks nothing; a thread that it opened is also people's.
    writers = (_speaker(event),) if event.remark.target.id is None else (event.sender, event.remark.author)
    is_own = any(policy.is_own(writer, event.remark.body) for writer in writers)
    return "the bot's own text" if is_own else None


def _asks_for_review(gesture: Gesture | Addressed, policy: Policy) -> bool:
    return gesture.label.casefold() == policy.review_label.casefold() or gesture.reviewer_id == policy.bot_id


def _speaker(event: Written | Gesture) -> Actor:
    """Return who labelled, assigned or asked for a review, or who wrote the text; of an edit, its editor.

    Opening is sent by another person for an issue that was made from a discussion.
    """
    is_first = isinstance(event, Written) and event.body_before is None
    return event.remark.author if is_first else event.sender


def _addressed(event: Written | Gesture) -> Addressed:
    added: tuple[str, int | None, int | None] = ("", None, None)
    if isinstance(event, Gesture):
        added = (event.label, event.assignee_id, event.reviewer_id)
    return Addressed(event.repository, event.thread, _speaker(event), event.remark.target, event.remark.body, *added)


def _request(event: Written | Gesture, parsed: ParsedComment, agent: str | None, *, on_own_pull: bool) -> Request:
    remark, gesture = event.remark, event.event_id if isinstance(event, Gesture) else None
    return Request(
        repository=event.repository,
        thread=event.thread,
        ask=Ask(
            text=parsed.request or "",
            by=_speaker(event),
            at=event.written_at if isinstance(event, Written) else remark.updated_at,
            target=remark.target,
            verb=parsed.verb,
            agent=agent,
            context=event.code if isinstance(event, Written) else "",
            gesture=gesture,
        ),
        identity=remark.node_id if gesture is None else gesture,
        commands=parsed.commands,
        names=parsed.names,
        asks=parsed.request is not None,
        mentions=parsed.mentions,
        review_id=event.review_id if isinstance(event, Written) else None,
        on_own_pull=on_own_pull,
        is_remark=parsed.is_remark,
    )
