"""One gate: what a delivery asks is read on GitHub, by id, before it writes anything (DESIGN.md §4, Authority).

One webhook secret is known to the admins of all repositories: each of them can sign any payload. So a payload only
names what happened: a text, a gesture, a close. Each function here takes the event as the payload tells it and returns
it as GitHub does, from which everything further is made. They raise NotConfirmedError and GitHubError.
"""

from collections.abc import Set
from dataclasses import replace
from datetime import timedelta

from bot.github.answers import Pull
from bot.github.client import GitHub
from bot.github.errors import NotFound
from bot.github.events import (
    Addressed,
    BlockersChanged,
    ClosedPull,
    Gesture,
    Remark,
    ThreadClosed,
    ThreadReopened,
    Ticked,
    Written,
)
from bot.github.payloads import reverted_by
from bot.github.thread_parts import Shown, WhoAsked, read_asked, read_edits, who_asked
from bot.github.transport import Sleep
from bot.model import Repository, Target, Thread
from bot.tasks import concurrently
from bot.turn.blocked import waits_for
from bot.turn.confirm import NotConfirmedError, twice

GIVEN_WITHIN = timedelta(seconds=10)
"""GitHub may date a gesture a little later than the thread that its payload shows."""


async def confirmed_written(github: GitHub, sleep: Sleep, event: Written, *, with_thread: bool) -> Written:
    """Return what was written: one request, a second one `with_thread`, and one for who edited a text that was edited.

    The newest words count. Of an edit its last editor speaks. What only looks older than the payload says may be late
    on one of GitHub's machines, and is looked at twice.
    """
    repository, number = event.repository, event.thread.number
    reads_thread = with_thread and event.remark.target.id is not None
    async with concurrently(_thread(github, repository, event.thread, needed=reads_thread)) as around:
        shown, who = await twice(sleep, lambda: _shown(github, event), lambda found: not _is_late(event, *found))
        about = await around
    text, thread, target = shown.text, shown.thread, _target(shown, event.remark.target)
    written_at = text.created_at if event.remark.target.id is None else shown.updated_at
    if who is not None and who.edited_at is not None:
        written_at = max(who.edited_at, text.created_at)
    opened = None
    if about is not None:
        opened, thread = _remark(about, event.opened.target) if event.opened else None, about.thread
    thread = event.thread if thread is None else replace(thread, head_sha=event.thread.head_sha)
    return replace(
        event,
        sender=text.author if event.body_before is None or who is None else who.writer(text.author),
        thread=replace(thread, number=number),
        remark=_remark(shown, target),
        written_at=written_at,
        code=shown.code,
        review_id=None if event.body_before is not None else shown.review_id,
        opened=opened if with_thread else event.opened,
        approves=shown.approves,
    )


async def confirmed_gesture(github: GitHub, sleep: Sleep, event: Gesture) -> Gesture:
    """Return what somebody gave the thread, with the thread's text by now: two requests.

    A payload does not say which event it tells of: it is the last one by the time of the thread in it.
    """

    async def look() -> Gesture:
        shown = await _there(github, event.repository, event.thread.number, event.remark.target)
        (who,) = await who_asked(github, event.repository, [shown.text.node_id or ""])
        until = event.remark.updated_at + GIVEN_WITHIN
        given = [one for one in who.gestures if (one.by.id, one.what) == (event.sender.id, _what(event))]
        last = next((one for one in reversed(given) if one.at <= until), None)
        if last is None or shown.thread is None:
            raise NotConfirmedError("nobody gave the thread that")
        remark = replace(_remark(shown, _target(shown, event.remark.target)), updated_at=last.at)
        thread = replace(shown.thread, head_sha=event.thread.head_sha)
        return replace(event, sender=last.by, thread=thread, remark=remark, event_id=last.id)

    return await twice(sleep, look)


async def confirmed_tick(github: GitHub, sleep: Sleep, event: Ticked, bot_id: int) -> Ticked:
    """Return the last edit that this person made of a comment of the bot's, and its thread: three requests."""

    async def look() -> Ticked:
        place = github, event.repository, event.thread.number
        async with concurrently(_there(*place, Target(event.thread.kind))) as around:
            shown = await _there(*place, event.remark.target)
            if shown.text.author.id != bot_id:
                raise NotConfirmedError("the comment is not the bot's")
            edits = await read_edits(github, event.repository, shown.text.node_id or "")
            thread = (await around).thread or event.thread
        at = next((at for at in range(len(edits) - 1, 0, -1) if edits[at].by.id == event.sender.id), None)
        if at is None:
            raise NotConfirmedError("the person did not edit the comment")
        posted = next((one.body for one in reversed(edits[:at]) if one.by.id == bot_id), None)
        edit, before = edits[at], edits[at - 1].body
        # What the bot wrote since is no person's taking it back.
        now = edit.body if edits[-1].by.id == bot_id else edits[-1].body
        if edit.body is None or posted is None or before is None or now is None:
            raise NotConfirmedError("GitHub does not show the versions of the comment")
        remark = replace(_remark(shown, event.remark.target), body=edit.body, updated_at=edit.at)
        thread = replace(thread, head_sha=event.thread.head_sha)
        return Ticked(event.repository, edit.by, thread, remark, edit.id, posted, before, now)

    return await twice(sleep, look, lambda found: found.remark.updated_at >= event.remark.updated_at)


async def confirmed_close(github: GitHub, sleep: Sleep, event: ThreadClosed) -> ThreadClosed:
    """Return the end of a thread, one request: closed, merged, or no longer there."""

    async def look() -> ThreadClosed:
        if event.is_gone:
            if await _is_there(github, event.repository, event.thread.number):
                raise NotConfirmedError("the thread is there")
            return event
        if event.thread.kind == "pull":
            return await _closed_pull(github, event)
        thread = await github.thread(event.repository, event.thread.number)
        if thread.closed_at is None:
            raise NotConfirmedError("the thread is open")
        return replace(event, thread=thread, at=thread.closed_at, pull=None, reverts=None)

    return await twice(sleep, look)


async def confirmed_opening(github: GitHub, sleep: Sleep, event: Written) -> Pull:
    """Return the pull request that was opened, which is open and of that branch, one request."""

    async def look() -> Pull:
        pull = await _pull(github, event.repository, event.thread.number)
        if not pull.is_open:
            raise NotConfirmedError("the pull request is closed")
        if (pull.head_ref, pull.head_repository_id) != (event.branch, event.repository.id):
            raise NotConfirmedError("the pull request is of another branch")
        return pull

    return await twice(sleep, look)


async def confirmed_reopening(github: GitHub, sleep: Sleep, event: ThreadReopened) -> ThreadReopened:
    """Return that the thread is open, one request."""

    async def look() -> ThreadReopened:
        shown = await _there(github, event.repository, event.thread.number, Target(event.thread.kind))
        if shown.thread is None or shown.thread.closed_at is not None:
            raise NotConfirmedError("the thread is closed")
        return replace(event, thread=shown.thread, at=shown.updated_at)

    return await twice(sleep, look)


async def confirmed_blockers(github: GitHub, sleep: Sleep, event: BlockersChanged, known: Set[str]) -> None:
    """Return where other issues block it than those for which a request of it is `known` to wait: one request."""
    if not known:
        raise NotConfirmedError("no request waits there")

    async def look() -> None:
        blockers, _ = await github.blockers(event.repository, event.number)
        if {one.name for one in waits_for(blockers)} == known:
            raise NotConfirmedError("the same issues block it")

    await twice(sleep, look)


async def confirmed_addressed(github: GitHub, sleep: Sleep, found: Addressed) -> tuple[Addressed, str]:
    """Return the text of a payload that cannot be read whole, with its thread, and GitHub's id of it: two requests.

    Whether somebody gave the thread something is not asked: who did hears nothing.
    """

    async def look() -> tuple[Addressed, str]:
        place = github, found.repository, found.thread.number
        shown = await _there(*place, found.target)
        if (shown.text.author.id, shown.text.body) != (found.author.id, found.body):
            raise NotConfirmedError("the text is another, or somebody else's")
        thread = shown.thread or (await _there(*place, Target(found.thread.kind))).thread or found.thread
        return replace(
            found, thread=thread, author=shown.text.author, target=_target(shown, found.target)
        ), shown.text.node_id or ""

    return await twice(sleep, look)


async def _shown(github: GitHub, event: Written) -> tuple[Shown, WhoAsked | None]:
    """Return the text, and who edited it where that may be of interest."""
    shown = await _there(github, event.repository, event.thread.number, event.remark.target)
    text = shown.text
    if text.author.id != event.remark.author.id:
        raise NotConfirmedError("somebody else wrote the text")
    is_as_written = event.body_before is None and event.remark.target.kind != "review"
    if is_as_written and shown.updated_at == text.created_at:
        return shown, None
    (who,) = await who_asked(github, event.repository, [text.node_id or ""])
    if event.body_before is not None and who.edited_at is None:
        raise NotConfirmedError("nobody edited the text")
    if event.body_before is None and who.writer(text.author).id != text.author.id:
        raise NotConfirmedError("somebody else edited the text since")
    return shown, who


def _is_late(event: Written, shown: Shown, who: WhoAsked | None) -> bool:
    """Return whether GitHub may show a state from before the event."""
    changed_at = shown.updated_at if who is None or who.edited_at is None else max(shown.updated_at, who.edited_at)
    said = event.remark
    return changed_at < said.updated_at or (changed_at == said.updated_at and shown.text.body != said.body)


async def _pull(github: GitHub, repository: Repository, number: int) -> Pull:
    """Return the pull request. Raises NotFound as `_there` does."""
    try:
        return await github.pull(repository, number)
    except NotFound:
        await github.as_named_now(repository)
        raise NotConfirmedError("there is no such pull request") from None


async def _closed_pull(github: GitHub, event: ThreadClosed) -> ThreadClosed:
    pull = await _pull(github, event.repository, event.thread.number)
    if pull.closed_at is None:
        raise NotConfirmedError("the pull request is open")
    told = ClosedPull(pull.number, pull.head_ref, pull.head_sha, pull.created_at, pull.merged_at)
    return replace(
        event,
        thread=Thread(pull.number, "pull", pull.title, pull.closed_at, pull.head_sha),
        at=pull.closed_at,
        pull=told if pull.head_repository_id == event.repository.id else None,
        reverts=reverted_by(pull.body, event.repository) if pull.merged_at is not None else None,
    )


async def _is_there(github: GitHub, repository: Repository, number: int) -> bool:
    """Return whether the thread is in this repository, which the bot sees. GitHub leads on to where it was moved."""
    found = await github.get_if_there(repository, "/issues/{number}", number=number)
    place = found and f"{found['repository_url'].rpartition('/repos/')[2]}#{found['number']}".casefold()
    if place == f"{repository.full_name}#{number}".casefold():
        return True
    return bool(place == f"{(await github.as_named_now(repository)).full_name}#{number}".casefold())


async def _thread(github: GitHub, repository: Repository, thread: Thread, *, needed: bool) -> Shown | None:
    return await _there(github, repository, thread.number, Target(thread.kind)) if needed else None


async def _there(github: GitHub, repository: Repository, number: int, target: Target) -> Shown:
    """Return the text. Raises NotFound where the bot does not see the repository: that says nothing of the text."""
    if (shown := await read_asked(github, repository, number, target)) is None:
        await github.as_named_now(repository)  # GitHub's answer is the same
        raise NotConfirmedError("the thread has no such text")
    return shown


def _remark(shown: Shown, target: Target) -> Remark:
    text = shown.text
    return Remark(target, text.node_id or "", text.body, text.author, shown.updated_at)


def _target(shown: Shown, target: Target) -> Target:
    """Return what was asked for, by the kind that the thread has."""
    return target if shown.thread is None else Target(shown.thread.kind)


def _what(event: Gesture) -> str | int | None:
    """Return what was given, as GitHub's timeline tells it (`Given.what`)."""
    if event.label:
        return event.label.casefold()
    return event.assignee_id if event.reviewer_id is None else -event.reviewer_id
