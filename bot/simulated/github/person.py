"""A person in front of the web page: every method is one action there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bot.simulated.github import repository_acts
from bot.simulated.github.git import Files
from bot.simulated.github.model import (
    Account,
    Comment,
    Issue,
    Pull,
    Reaction,
    ReactionContent,
    Repository,
    Review,
    ReviewComment,
    ReviewState,
    User,
)
from bot.simulated.github.pull_acts import Acts, MergeMethod


@dataclass(frozen=True, slots=True)
class Person:
    """A person; their acts are not checked for permissions, since the story decides what people do."""

    user: User
    acts: Acts

    @property
    def id(self) -> int:
        return self.user.id

    @property
    def login(self) -> str:
        return self.user.login

    def new_token(self) -> str:
        """Create a personal access token for REST, GraphQL and git."""
        return self.acts.world.issue_token(self.user)

    def add_signing_key(self, public_key: str) -> None:
        """Add a public SSH key with which commits are signed."""
        self.acts.world.signatures.register(self.user, public_key)

    async def open_issue(
        self, repository: Repository, title: str, body: str | None = None, labels: Iterable[str] = ()
    ) -> Issue:
        return self.acts.open_issue(self.user, repository, title, body, labels)

    async def comment(self, thread: Issue, body: str) -> Comment:
        return self.acts.comment(self.user, thread, body)

    async def edit(self, written: Comment | Issue, body: str) -> None:
        """Change the text of a comment, an issue or a pull request."""
        if isinstance(written, Issue):
            self.acts.edit_thread(self.user, written, body=body)
        else:
            self.acts.edit_comment(self.user, written, body)

    async def delete(self, comment: Comment) -> None:
        self.acts.delete_comment(self.user, comment)

    async def hide(self, written: Comment | Review, reason: str = "SPAM") -> None:
        """Minimise a comment, an inline comment or a review."""
        written.minimized_as = reason

    async def react(self, target: Issue | Comment, content: ReactionContent) -> Reaction:
        return self.acts.react(self.user, target, content)[0]

    async def label(self, thread: Issue, name: str) -> None:
        self.acts.label(self.user, thread, name)

    async def unlabel(self, thread: Issue, name: str) -> None:
        self.acts.unlabel(self.user, thread, name)

    async def assign(self, thread: Issue, assignee: Account) -> None:
        self.acts.assign(self.user, thread, self.acts.world.user_of(assignee))

    async def request_review(self, pull: Pull, reviewer: Account) -> None:
        self.acts.request_review(self.user, pull, self.acts.world.user_of(reviewer))

    async def block(self, issue: Issue, blocker: Issue) -> None:
        """Mark the issue as blocked by another one."""
        self.acts.block(self.user, issue, blocker)

    async def unblock(self, issue: Issue, blocker: Issue) -> None:
        self.acts.block(self.user, issue, blocker, added=False)

    async def close(self, thread: Issue, comment: str | None = None, reason: str | None = None) -> None:
        """Close the thread, or "close with comment": then the comment's event comes first, at the same moment."""
        if comment is not None:
            self.acts.comment(self.user, thread, comment)
        self.acts.set_state(self.user, thread, "closed", reason)

    async def reopen(self, thread: Issue) -> None:
        self.acts.set_state(self.user, thread, "open")

    async def transfer(self, issue: Issue, target: Repository) -> Issue:
        """Move an issue to another repository, where it is a new one."""
        return self.acts.transfer(self.user, issue, target)

    async def delete_issue(self, issue: Issue) -> None:
        self.acts.delete_issue(self.user, issue)

    async def open_pull(
        self,
        repository: Repository,
        *,
        head: str,
        title: str,
        base: str | None = None,
        body: str | None = None,
        draft: bool = False,
        head_repo: Repository | None = None,
    ) -> Pull:
        """Open a pull request from a branch, also of a fork (`head_repo`), into the default branch or `base`."""
        return await self.acts.open_pull(
            self.user,
            repository,
            head=head,
            base=base or repository.default_branch,
            title=title,
            body=body,
            draft=draft,
            head_repository=head_repo,
        )

    async def review(
        self,
        pull: Pull,
        body: str | None,
        state: ReviewState = "commented",
        comments: Sequence[tuple[str, int, str]] = (),
    ) -> Review:
        """Submit a review, with its inline comments as (path, line, text)."""
        return self.acts.review(self.user, pull, body, state, comments)

    async def review_comment(self, pull: Pull, path: str, line: int, body: str) -> ReviewComment:
        return self.acts.review_comment(self.user, pull, path, line, body)

    async def reply(self, comment: ReviewComment, body: str) -> ReviewComment:
        return self.acts.reply(self.user, comment, body)

    async def merge(self, pull: Pull, method: MergeMethod = "merge") -> str:
        """Merge and return the commit on the base branch."""
        return await self.acts.merge(self.user, pull, method)

    async def push(
        self, repository: Repository, branch: str, files: Files, message: str, base: str | None = None
    ) -> str:
        """Commit to a branch and return the commit; a missing branch starts at `base` or the default branch."""
        return await self.acts.push(self.user, repository, branch, files, message, base)

    async def delete_branch(self, repository: Repository, branch: str) -> None:
        await self.acts.delete_branch(self.user, repository, branch)

    async def amend(self, repository: Repository, branch: str, files: Files, message: str = "Amended") -> str:
        """Replace a branch's last commit, push with force and return the new commit."""
        return await repository_acts.amend(self.acts, self.user, repository, branch, files, message)

    async def update_from_base(self, pull: Pull) -> str:
        """Press the button "Update branch" and return the merge commit."""
        return await repository_acts.update_from_base(self.acts, self.user, pull)

    async def retarget(self, pull: Pull, base: str) -> None:
        """Change the pull request's base branch."""
        await repository_acts.retarget(self.acts, self.user, pull, base)

    async def readies(self, pull: Pull) -> None:
        """Mark a draft as ready for review."""
        repository_acts.ready_for_review(self.acts, self.user, pull)

    async def convert_to_draft(self, pull: Pull) -> None:
        repository_acts.convert_to_draft(self.acts, self.user, pull)

    async def rename_branch(self, repository: Repository, branch: str, name: str) -> None:
        await repository_acts.rename_branch(self.acts, self.user, repository, branch, name)
