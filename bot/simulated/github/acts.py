"""Acts of people and bots on issues and comments, and the webhooks that GitHub sends for them."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from bot.simulated.github.errors import RefusedError, invalid
from bot.simulated.github.model import (
    Comment,
    Gesture,
    Issue,
    Label,
    Pull,
    Reaction,
    ReactionContent,
    Repository,
    Review,
    ReviewComment,
    Revision,
    State,
    User,
)
from bot.simulated.github.payloads import Payloads
from bot.simulated.github.webhooks import Webhooks
from bot.simulated.github.world import World

MAX_BODY_CHARACTERS = 65_536

# https://docs.github.com/issues/tracking-your-work-with-issues/using-issues/linking-a-pull-request-to-an-issue
CLOSING_REFERENCE = re.compile(
    r"(?<![\w-])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?[ \t]+(?P<repository>[\w.-]+/[\w.-]+)?#(?P<number>\d+)\b",
    re.IGNORECASE,
)


class IssueActs:
    """Acts on issues, on pull requests seen as issues, and on comments."""

    def __init__(self, world: World, payloads: Payloads, webhooks: Webhooks) -> None:
        self.world = world
        self.payloads = payloads
        self.webhooks = webhooks

    @property
    def now(self) -> datetime:
        return self.world.clock()

    def emit(self, event: str, repository: Repository, sender: User, **parts: Any) -> None:
        """Send a webhook with the parts that every payload has, and wake all waiters."""
        installation = self.payloads.installation()
        payload = parts | {
            "repository": self.payloads.repository(repository),
            "sender": self.payloads.user(sender),
            **({} if installation is None else {"installation": installation}),
        }
        self.webhooks.emit(event, payload, repository.id)
        self.world.changes.notify()

    def open_issue(
        self,
        author: User,
        repository: Repository,
        title: str,
        body: str | None,
        labels: Iterable[str] = (),
        assignees: Iterable[User] = (),
        **parts: Any,
    ) -> Issue:
        """Send issues.opened, then labeled and assigned for the given labels and assignees."""
        check_title(title)
        check_body("Issue", body)
        issue = Issue(
            id=self.world.next_id(),
            number=repository.take_number(),
            repository=repository,
            author=author,
            title=title,
            body=body,
            created_at=self.now,
            updated_at=self.now,
            labels=[self.label_named(repository, name) for name in labels],
            assignees=list(assignees),
        )
        repository.threads[issue.number] = issue
        self.emit_thread("opened", issue, author, **parts)
        for label in issue.labels:
            self._note(issue, author, label)
            self.emit_thread("labeled", issue, author, label=self.payloads.label(label, repository))
        for user in issue.assignees:
            self._note(issue, author, user)
            self.emit_thread("assigned", issue, author, assignee=self.payloads.user(user))
        return issue

    def comment(self, author: User, thread: Issue, body: str) -> Comment:
        """Send issue_comment.created, on an issue or a pull request."""
        check_body("IssueComment", body, required=True)
        comment = Comment(
            id=self.world.next_id(),
            thread=thread,
            author=author,
            original=body,
            created_at=self.now,
            updated_at=self.now,
        )
        thread.comments.append(comment)
        thread.repository.comments[comment.id] = comment
        thread.updated_at = self.now
        self._emit_comment("created", comment, author)
        return comment

    def edit_comment(self, editor: User, comment: Comment, body: str) -> None:
        """Send issue_comment.edited or pull_request_review_comment.edited, with the previous body."""
        check_body("IssueComment", body, required=True)
        before = comment.body
        comment.edit(self.now, editor, body)
        self._emit_comment("edited", comment, editor, changes={"body": {"from": before}})

    def edit_thread(self, editor: User, thread: Issue, *, title: str | None = None, body: str | None = None) -> None:
        """Send issues.edited or pull_request.edited, with the changed fields."""
        changes: dict[str, dict[str, str | None]] = {}
        if title is not None and title != thread.title:
            changes["title"] = {"from": thread.title}
            thread.renames.append((self.now, thread.title))
            thread.title = title
        if body is not None and body != thread.body:
            changes["body"] = {"from": thread.body}
            thread.revisions = thread.revisions or [Revision(thread.created_at, thread.author, thread.body or "")]
            thread.revisions.append(Revision(self.now, editor, body))
            thread.body = body
        thread.updated_at = self.now
        self.emit_thread("edited", thread, editor, changes=changes)

    def delete_comment(self, deleter: User, comment: Comment) -> None:
        """Send issue_comment.deleted or pull_request_review_comment.deleted."""
        if isinstance(comment, ReviewComment):
            comment.review.pull.review_comments.remove(comment)
        else:
            comment.thread.comments.remove(comment)
            del comment.thread.repository.comments[comment.id]
        self._emit_comment("deleted", comment, deleter)

    def react(self, user: User, target: Issue | Comment | Review, content: ReactionContent) -> tuple[Reaction, bool]:
        """Return the user's reaction, and whether it is new; GitHub sends no webhook for it."""
        for reaction in target.reactions:
            if (reaction.user, reaction.content) == (user, content):
                return reaction, False
        reaction = Reaction(self.world.next_id(), user, content, self.now)
        target.reactions.append(reaction)
        self.world.changes.notify()
        return reaction, True

    def label(self, user: User, thread: Issue, name: str) -> None:
        """Send issues.labeled or pull_request.labeled, unless the thread has the label already."""
        label = self.label_named(thread.repository, name)
        if label in thread.labels:
            return
        thread.labels.append(label)
        self._note(thread, user, label)
        thread.updated_at = self.now
        self.emit_thread("labeled", thread, user, label=self.payloads.label(label, thread.repository))

    def unlabel(self, user: User, thread: Issue, name: str) -> None:
        """Send issues.unlabeled or pull_request.unlabeled; 404 if the thread does not have the label."""
        label = self.label_named(thread.repository, name)
        if label not in thread.labels:
            raise RefusedError(404, "Label does not exist")
        thread.labels.remove(label)
        thread.updated_at = self.now
        self.emit_thread("unlabeled", thread, user, label=self.payloads.label(label, thread.repository))

    def assign(self, user: User, thread: Issue, assignee: User) -> None:
        """Send issues.assigned or pull_request.assigned."""
        if assignee not in thread.assignees:
            thread.assignees.append(assignee)
        self._note(thread, user, assignee)
        thread.updated_at = self.now
        self.emit_thread("assigned", thread, user, assignee=self.payloads.user(assignee))

    def request_review(self, user: User, pull: Pull, reviewer: User) -> None:
        """Send pull_request.review_requested."""
        self._note(pull, user, reviewer, is_reviewer=True)
        pull.updated_at = self.now
        self.emit_thread("review_requested", pull, user, requested_reviewer=self.payloads.user(reviewer))

    def _note(self, thread: Issue, actor: User, given: Label | User, *, is_reviewer: bool = False) -> None:
        thread.gestures.append(Gesture(self.world.next_id(), self.now, actor, given, is_reviewer))

    def block(self, user: User, issue: Issue, blocker: Issue, *, added: bool = True) -> None:
        """Send issue_dependencies.blocked_by_added or .blocked_by_removed, and .blocking_… for the blocker.

        https://docs.github.com/webhooks/webhook-events-and-payloads#issue_dependencies
        """
        if added:
            issue.blocked_by.append(blocker)
        else:
            issue.blocked_by.remove(blocker)
        of_issue, of_blocker = self.payloads.issue(issue), self.payloads.issue(blocker)
        parts = {"blocked_issue": of_issue, "blocked_issue_id": issue.id}
        parts |= {"blocking_issue": of_blocker, "blocking_issue_id": blocker.id}
        done = "added" if added else "removed"
        for side, there, other in (("blocked_by", issue, blocker), ("blocking", blocker, issue)):
            other_key = "blocking_issue_repo" if side == "blocked_by" else "blocked_issue_repo"
            more = {**parts, other_key: self.payloads.repository(other.repository)}
            self.emit("issue_dependencies", there.repository, user, action=f"{side}_{done}", **more)

    def set_state(self, user: User, thread: Issue, state: State, reason: str | None = None) -> None:
        """Send issues.closed or .reopened (pull_request.… for a pull request), unless it is in that state already."""
        if thread.state == state:
            return
        if isinstance(thread, Pull) and thread.merged:
            raise invalid("PullRequest", "state", "state cannot be changed. The pull request was merged.")
        thread.state = state
        thread.closed_at, thread.closed_by = (self.now, user) if state == "closed" else (None, None)
        thread.state_reason = reason if state == "closed" else "reopened"
        thread.updated_at = self.now
        self.emit_thread("closed" if state == "closed" else "reopened", thread, user)

    def transfer(self, user: User, issue: Issue, target: Repository) -> Issue:
        """Send issues.transferred in the old repository and issues.opened in the new one."""
        before = {
            "old_issue": self.payloads.issue(issue),
            "old_repository": self.payloads.repository(issue.repository),
        }
        self._take_out(issue)
        moved = self.open_issue(issue.author, target, issue.title, issue.body, changes=before)
        issue.repository.gone[issue.number] = moved
        changes = {
            "new_issue": self.payloads.issue(moved),
            "new_repository": self.payloads.repository(target),
        }
        self.emit_thread("transferred", issue, user, changes=changes)
        return moved

    def delete_issue(self, user: User, issue: Issue) -> None:
        """Send issues.deleted."""
        self._take_out(issue)
        issue.repository.gone[issue.number] = None
        self.emit_thread("deleted", issue, user)

    @staticmethod
    def _take_out(issue: Issue) -> None:
        del issue.repository.threads[issue.number]
        for comment in issue.comments:
            del issue.repository.comments[comment.id]

    def label_named(self, repository: Repository, name: str) -> Label:
        """Return the repository's label of this name; create it if it is missing."""
        if name not in repository.labels:
            repository.labels[name] = Label(self.world.next_id(), name)
        return repository.labels[name]

    def emit_thread(self, action: str, thread: Issue, sender: User, **parts: Any) -> None:
        """Send the webhook of an issue or of a pull request."""
        if isinstance(thread, Pull):
            own = {"number": thread.number, "pull_request": self.payloads.pull(thread)}
            self.emit("pull_request", thread.repository, sender, action=action, **own, **parts)
        else:
            issue = self.payloads.issue(thread)
            self.emit("issues", thread.repository, sender, action=action, issue=issue, **parts)

    def closing_issues(self, pull: Pull) -> Sequence[Issue]:
        """Return the issues that merging the pull request closes: none unless it goes into the default branch."""
        if pull.base_ref != pull.repository.default_branch:
            return []
        found: dict[int, Issue] = {}
        for reference in CLOSING_REFERENCE.finditer(pull.body or ""):
            name = reference["repository"]
            repository = pull.repository if name is None else self.world.repository(name)
            issue = None if repository is None else repository.threads.get(int(reference["number"]))
            if issue is not None and not isinstance(issue, Pull):
                found[issue.id] = issue
        return list(found.values())

    def _emit_comment(self, action: str, comment: Comment, sender: User, **parts: Any) -> None:
        repository = comment.thread.repository
        if isinstance(comment, ReviewComment):
            own = {
                "comment": self.payloads.review_comment(comment),
                "pull_request": self.payloads.pull(comment.review.pull),
            }
            self.emit("pull_request_review_comment", repository, sender, action=action, **own, **parts)
        else:
            own = {"issue": self.payloads.issue(comment.thread), "comment": self.payloads.comment(comment)}
            self.emit("issue_comment", repository, sender, action=action, **own, **parts)


def check_title(title: str) -> None:
    if not title.strip():
        raise RefusedError(422, "Validation Failed", [{"resource": "Issue", "code": "missing_field", "field": "title"}])


def check_body(resource: str, body: str | None, *, required: bool = False) -> None:
    """Refuse with 422 a body that is missing or longer than GitHub allows."""
    if required and not (body or "").strip():
        raise invalid(resource, "body", "Body can't be blank")
    if len(body or "") > MAX_BODY_CHARACTERS:
        raise invalid(resource, "body", f"body is too long (maximum is {MAX_BODY_CHARACTERS} characters)")
