"""What people did on the threads of a repository, read where GitHub's log of deliveries may not be.

Each act becomes the delivery that GitHub would have sent, so that a later real one does nothing. It may use only what
is known to have stood there at its time, written by its sender: an edit counts as GitHub's history of edits tells it,
a label or an assignment only where the text was not edited since. Of anything else the person is asked to repeat it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import structlog

from bot.github.client import GitHub
from bot.github.errors import NotFound
from bot.github.payloads import GHOST, REMARKS, UNPROVEN
from bot.github.thread_parts import FRAGMENTS, GESTURES
from bot.inbox.delivery import may_address
from bot.model import Actor, Repository, Target
from bot.store import recoveries
from bot.store.database import Pool
from bot.store.pull_requests import own_pulls
from bot.thread.authority import Policy

MOST_CHANGED = 200
"""The threads, comments and inline comments that are read in one round, of each; the next round goes on."""
OF_ONE_QUERY = 50
OVERLAP = timedelta(minutes=10)
"""What happened can appear in a list or a log a little after its time."""
# Gestures have no list of their own that others cannot fill; only GraphQL tells who edited a text, and how: the `diff`
# of an edit is the whole text that it left, the newest edit comes first, and the last one is the text
# as it was written. https://docs.github.com/graphql/reference/interfaces#comment
DETAILS = f"""
query($ids: [ID!]!, $since: DateTime!) {{
  nodes(ids: $ids) {{
    ... on Comment {{ ...history }}
    ... on PullRequest {{
      reviews(last: 50) {{ nodes {{ id fullDatabaseId body state submittedAt author {{ ...account }} ...history }} }}
    }}
    {GESTURES}
  }}
}}
fragment history on Comment {{
  lastEditedAt editor {{ ...account }} includesCreatedEdit
  userContentEdits(first: 100) {{ nodes {{ editedAt diff editor {{ ...account }} }} }}
}}
{FRAGMENTS}
"""
_log = structlog.get_logger()


_Revision = tuple[datetime, str, dict[str, Any]]
"""A text as somebody left it at that time; the parts of its payload tell who did what."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that was done. `parts` are those of its payload without the repository and the thread.

    `thread` has the form of an issue, None where it is not known. `text` is what was written, None for other acts.
    """

    event: str
    at: datetime
    node_id: str
    number: int
    parts: dict[str, Any]
    thread: dict[str, Any] | None = None
    text: str | None = None
    target: Target | None = None

    @property
    def guid(self) -> str:
        """A GUID that is always the same for the same act."""
        name = f"{self.node_id}/{self.parts['action']}/{self.at.isoformat()}"
        return str(uuid5(NAMESPACE_URL, f"https://github.com/{name}"))


class Acts:
    """A reader of one repository's threads, from the time `since`."""

    def __init__(self, pool: Pool, github: GitHub, policy: Policy, repository: Repository, since: datetime) -> None:
        self._pool = pool
        self._github = github
        self._policy = policy
        self._repository = repository
        self._since = since - OVERLAP
        self._threads: dict[int, dict[str, Any]] = {}
        self._own_pulls: set[int] = set()

    async def read(self) -> tuple[list[Act], datetime]:
        """Return what may concern the bot, the oldest first, and the time from which the next round must read.

        That is when the newest of what was compared changed, or where this round ended: else a flood would be read
        again and again, and never what came after it.
        """
        self._own_pulls = await own_pulls(self._pool, self._repository)
        acts: list[Act] = []
        ends: list[datetime] = []
        newest = self._since + OVERLAP
        for what in ("issues", "issues/comments", "pulls/comments"):
            changed = await self._github.changed_since(self._repository, what, self._since, MOST_CHANGED)
            if changed:
                newest = max(newest, _time(changed[-1]["updated_at"]))
            if len(changed) >= MOST_CHANGED:
                ends.append(_time(changed[-1]["updated_at"]) + timedelta(seconds=1) + OVERLAP)
            if what == "issues":
                self._threads = {one["number"]: one for one in changed}
            else:
                changed = [one for one in changed if self._may_address(one["body"] or "") or self._is_remark(one)]
            # Of each, since an edit within the second of the writing leaves no trace in REST's times.
            details = await self._details([one["node_id"] for one in changed])
            for one in changed:
                about = details.get(one["node_id"])
                if about is None:
                    # Whether it was edited is not known.
                    _log.warning("not-recovered", id=one["id"], why="GitHub does not show it")
                    continue
                try:
                    acts += list(self._thread(one, about) if what == "issues" else self._comment(what, one, about))
                except (KeyError, TypeError, ValueError) as problem:  # malformed
                    _log.warning("not-recovered", number=one.get("number"), id=one.get("id"), why=repr(problem))
        found = [act for act in acts if await self._concerns(act)]
        return sorted(found, key=lambda act: act.at), min(ends, default=newest)

    async def payload(self, act: Act) -> dict[str, Any]:
        """Return the payload of an act as GitHub would have sent it.

        A pull request's head is left out: the one at that time is not known.
        """
        thread = act.thread or self._threads.get(act.number)
        if thread is None:
            thread = await self._github.get(self._repository, "/issues/{number}", number=act.number)
            self._threads[act.number] = thread
        repository = self._repository
        about = {
            "repository": {
                "id": repository.id,
                "name": repository.name,
                "owner": {"login": repository.owner},
                "default_branch": repository.default_branch,
            },
            "pull_request" if act.event.startswith("pull_request") else "issue": thread,
        }
        if repository.installation_id is not None:
            about["installation"] = {"id": repository.installation_id}
        return {**act.parts, **about}

    async def _details(self, ids: list[str]) -> dict[str, Any]:
        """Return what only GraphQL tells, by node id; nothing of what it does not show."""
        if len(ids) > OF_ONE_QUERY:
            return await self._details(ids[:OF_ONE_QUERY]) | await self._details(ids[OF_ONE_QUERY:])
        if not ids:
            return {}
        since = f"{self._since:%Y-%m-%dT%H:%M:%SZ}"
        try:
            answer = await self._github.query(self._repository, DETAILS, ids=ids, since=since)
        except NotFound:
            # One that is not shown fails the whole query.
            half = len(ids) // 2
            return await self._details(ids[:half]) | await self._details(ids[half:]) if half else {}
        # In the order of the ids, which may be of an older form than those that GraphQL tells.
        return {node_id: one for node_id, one in zip(ids, answer["nodes"], strict=True) if one}

    def _thread(self, one: Any, about: Any) -> Iterator[Act]:
        """Yield the acts in a thread: its text, labels, assignments of the bot and reviews."""
        if one["closed_at"] and _time(one["closed_at"]) >= self._since:
            yield closing(one)
        target = Target("pull" if one.get("pull_request") else "issue")
        for at, body, parts in self._revisions("opened", one["created_at"], one["user"], one["body"], about):
            # As it was then, so that it is recognised.
            thread = {**one, "updated_at": _stamp(at), "body": body}
            if parts["action"] == "opened":
                thread |= {"state": "open", "closed_at": None}
            yield Act("issues", at, one["node_id"], one["number"], parts, thread, body, target)
        for item in (about.get("timelineItems") or {}).get("nodes", ()):
            if not item or item["actor"] is None:
                continue
            at = _time(item["createdAt"])
            parts, event = {"sender": _account(item["actor"])}, "issues"
            if "label" in item:
                name = item["label"]["name"]
                is_review = name.casefold() == self._policy.review_label.casefold()
                is_ours = is_review or self._policy.agent_of_label(name) is not None
                parts |= {"action": "labeled", "label": item["label"]}
            elif "requestedReviewer" in item:
                event, reviewer = "pull_request", item["requestedReviewer"] or {}
                is_ours = reviewer.get("databaseId") == self._policy.bot_id
                parts |= {"action": "review_requested", "requested_reviewer": _account(reviewer) if is_ours else None}
            else:
                is_ours = (item.get("assignee") or {}).get("databaseId") == self._policy.bot_id
                parts |= {"action": "assigned", "assignee": _account(item["assignee"]) if is_ours else None}
            if is_ours and at >= self._since:
                if (edited := about.get("lastEditedAt")) and _time(edited) >= at:
                    parts |= UNPROVEN
                yield Act(event, at, item["id"], one["number"], parts, {**one, "updated_at": _stamp(at)})
        for review in (about.get("reviews") or {}).get("nodes", ()):
            if review and review["submittedAt"]:
                yield from self._review(one["number"], review)

    def _review(self, number: int, one: Any) -> Iterator[Act]:
        author = _account(one["author"]) if one["author"] else None
        review_id = int(one["fullDatabaseId"])
        for at, body, parts in self._revisions("submitted", one["submittedAt"], author, one["body"], one):
            review = {"id": review_id, "node_id": one["id"], "user": author, "body": body}
            times = {"submitted_at": one["submittedAt"], "updated_at": _stamp(at)}
            parts["review"] = {**review, **times, "state": one["state"].lower()}
            if body:
                target = Target("review", review_id)
                yield Act("pull_request_review", at, one["id"], number, parts, text=body, target=target)

    def _comment(self, what: str, one: Any, about: Any) -> Iterator[Act]:
        is_inline = what == "pulls/comments"
        event = "pull_request_review_comment" if is_inline else "issue_comment"
        number = int(one["pull_request_url" if is_inline else "issue_url"].rpartition("/")[2])
        target = Target("review-comment" if is_inline else "comment", one["id"])
        for at, body, parts in self._revisions("created", one["created_at"], one["user"], one["body"], about):
            parts["comment"] = {**one, "updated_at": _stamp(at), "body": body}
            yield Act(event, at, one["node_id"], number, parts, text=body, target=target)

    def _revisions(self, opened: str, created: str, author: Any, body: str | None, about: Any) -> Iterator[_Revision]:
        """Yield how the text was written and edited, `about` being its history; `opened` is the action of its writing.

        Where the history does not lead without a gap to the text of now, the last edit is not proven.
        """
        edited = about.get("lastEditedAt")
        if edited is None:
            if _time(created) >= self._since:
                yield _time(created), body or "", {"action": opened, "sender": _sender(author)}
            return
        if _time(edited) < self._since:
            return
        history = (about.get("userContentEdits") or {}).get("nodes") or []
        try:
            if _text(history[0]) != _plain(body or ""):
                raise ValueError("the newest edit left another text")
            found = list(self._edits(opened, history, whole=about["includesCreatedEdit"]))
        except (IndexError, KeyError, TypeError, ValueError) as gap:
            _log.info("edit-not-proven", why=repr(gap))
            editor = about.get("editor")
            sender = _account(editor) if editor else _sender(None)
            found = [(_time(edited), body or "", {"action": "edited", "sender": sender, **_change(""), **UNPROVEN})]
        yield from reversed(found)

    def _edits(self, opened: str, history: list[Any], *, whole: bool) -> Iterator[_Revision]:
        """Yield the revisions since, the newest first. `whole`: the last of the history is the text as it was written.

        Raises KeyError, TypeError or ValueError where one of them is not known.
        """
        for newer, older in zip_longest(history, history[1:]):
            at, sender = _time(newer["editedAt"]), _account(newer["editor"])
            if at < self._since:
                return
            if older is not None:
                parts = {"action": "edited", "sender": sender, **_change(_text(older))}
            elif whole:
                parts = {"action": opened, "sender": sender}
            else:
                raise ValueError("the history does not reach back far enough")
            yield at, _text(newer), parts

    def _may_address(self, text: str) -> bool:
        return may_address(text, self._policy.bot_name, bare_commands=self._policy.bare_commands)

    def _is_remark(self, comment: Any) -> bool:
        return int(comment.get("pull_request_url", "/0").rpartition("/")[2]) in self._own_pulls

    async def _concerns(self, act: Act) -> bool:
        """Return whether it can concern the bot and was not acted on, as far as rows tell."""
        if act.parts["action"] == "closed":
            return await recoveries.is_open(self._pool, self._repository, act.number)
        sender = act.parts["sender"]
        if self._policy.is_own(Actor(sender["login"], sender["id"]), act.text or ""):
            return False
        if act.text is None or act.target is None:
            place = (self._repository, act.number)
            return not await recoveries.was_asked_by(self._pool, *place, sender["id"], act.at)
        is_remark = act.event in REMARKS and act.number in self._own_pulls
        if not (is_remark or self._may_address(act.text)):
            return False
        return not await recoveries.was_answered(self._pool, self._repository, act.number, act.target)


def closing(thread: dict[str, Any]) -> Act:
    """Return the close of a thread that is closed, in the form of an issue."""
    parts = {"action": "closed", "sender": _sender(thread["user"])}
    return Act("issues", _time(thread["closed_at"]), thread["node_id"], thread["number"], parts, thread)


def _change(before: str) -> dict[str, Any]:
    """Return what an edit changed: the text before it."""
    return {"changes": {"body": {"from": before}}}


def _text(edit: Any) -> str:
    """Return the text that an edit left. Raises ValueError where GitHub does not show it any more."""
    if edit["diff"] is None:
        raise ValueError("an edit is not shown")
    return _plain(edit["diff"])


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _sender(user: Any) -> dict[str, Any]:
    """Return an account of REST's, of a deleted one GitHub's own stand-in."""
    return {"login": GHOST.login, "id": GHOST.id} if user is None else user


def _account(found: Any) -> dict[str, Any]:
    """Return an account of GraphQL's in the form of REST's."""
    return {"login": found["login"], "id": found["databaseId"], "type": found["__typename"]}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
