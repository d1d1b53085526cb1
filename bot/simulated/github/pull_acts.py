"""Acts of people and bots on branches and pull requests, and the webhooks that GitHub sends for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bot.simulated.github.acts import IssueActs, check_body, check_title
from bot.simulated.github.errors import RefusedError, invalid
from bot.simulated.github.git import NO_COMMIT, Files, MergeConflictError, NewCommit
from bot.simulated.github.model import Pull, Push, Repository, Review, ReviewComment, ReviewState, User

MergeMethod = Literal["merge", "squash"]


@dataclass(frozen=True, slots=True)
class LineNote:
    """A remark of a review that is to be submitted, on lines of one side of the diff."""

    path: str
    line: int
    side: str
    body: str
    start_line: int | None = None


class Acts(IssueActs):
    """All acts: on issues, and on pull requests, reviews and branches."""

    async def open_pull(
        self,
        author: User,
        repository: Repository,
        *,
        head: str,
        base: str,
        title: str,
        body: str | None,
        draft: bool = False,
        head_repository: Repository | None = None,
    ) -> Pull:
        """Send pull_request.opened; 422 if a branch is missing or the same pull request is open already."""
        check_title(title)
        check_body("PullRequest", body)
        if draft and not repository.allows_drafts:
            raise RefusedError(422, "Draft pull requests are not supported in this repository.")
        source = head_repository or repository
        async with repository.git_lock:
            head_sha = (await source.git.branches()).get(head)
            base_sha = (await repository.git.branches()).get(base)
            if head_sha is None or base_sha is None:
                raise invalid("PullRequest", "head" if head_sha is None else "base", "Branch not found")
            _refuse_a_second(repository, source, head, base)
            if source is repository and await repository.git.is_ancestor(head_sha, base_sha):
                raise invalid("PullRequest", "head", f"No commits between {base} and {head}")
            pull = Pull(
                id=self.world.next_id(),
                number=repository.take_number(),
                repository=repository,
                author=author,
                title=title,
                body=body,
                created_at=self.now,
                updated_at=self.now,
                head_repository=source,
                head_ref=head,
                head_sha=head_sha,
                base_ref=base,
                base_sha=base_sha,
                draft=draft,
                closing_references_indexed=not self.world.late_closing_references,
            )
            await repository.git.fetch_pull_head(pull.number, source.git, head_sha)
            repository.threads[pull.number] = pull
        self.emit_thread("opened", pull, author)
        return pull

    def review(
        self,
        author: User,
        pull: Pull,
        body: str | None,
        state: ReviewState = "commented",
        comments: Sequence[tuple[str, int, str]] = (),
    ) -> Review:
        """Send pull_request_review.submitted, then pull_request_review_comment.created for each (path, line, text)."""
        check_body("PullRequestReview", body)
        review = self._new_review(author, pull, body, state)
        for path, line, text in comments:
            self._inline(review, path, line, text)
        self._emit_review(review)
        return review

    def submit(
        self, author: User, pull: Pull, body: str | None, state: ReviewState, commit: str, remarks: Sequence[LineNote]
    ) -> Review:
        """Send the webhooks of a review of this commit, whose remarks are on lines of its diff."""
        check_body("PullRequestReview", body)
        review = self._new_review(author, pull, body, state)
        review.commit_id = commit
        for one in remarks:
            comment = self._inline(review, one.path, one.line, one.body)
            comment.side, comment.start_line = one.side, one.start_line
        self._emit_review(review)
        return review

    def review_comment(self, author: User, pull: Pull, path: str, line: int, body: str) -> ReviewComment:
        """Add a single inline comment; GitHub wraps it in a review without a body."""
        review = self._new_review(author, pull, None, "commented")
        comment = self._inline(review, path, line, body)
        self._emit_review(review)
        return comment

    def reply(self, author: User, parent: ReviewComment, body: str) -> ReviewComment:
        """Answer in the thread of an inline comment, again in a review of its own."""
        review = self._new_review(author, parent.review.pull, None, "commented")
        first = parent.in_reply_to or parent
        comment = self._inline(review, parent.path, parent.line, body, in_reply_to=first)
        self._emit_review(review)
        return comment

    async def push(
        self, author: User, repository: Repository, branch: str, files: Files, message: str, base: str | None = None
    ) -> str:
        """Commit to a branch and return the commit's id; a missing branch starts at `base` (the default branch)."""
        async with repository.git_lock:
            before = await repository.git.branches()
            parent = before.get(branch) or before.get(base or repository.default_branch)
            parents = () if parent is None else (parent,)
            new = NewCommit(branch, message, author.login, self.now, parents, files=files)
            commit = await repository.git.commit(new)
            await self.branches_moved(author, repository, before)
        return commit

    async def delete_branch(self, author: User, repository: Repository, branch: str) -> None:
        """Push the deletion of the branch."""
        async with repository.git_lock:
            before = await repository.git.branches()
            await repository.git.run("update-ref", "-d", f"refs/heads/{branch}")
            await self.branches_moved(author, repository, before)

    async def merge(self, author: User, pull: Pull, method: MergeMethod = "merge") -> str:
        """Merge into the base and return the commit: push, pull_request.closed, issues.closed for each closed issue.

        405 if the pull request is closed, a draft or in conflict.
        """
        repository = pull.repository
        if pull.state == "closed" or pull.draft:
            raise RefusedError(405, "Pull Request is not mergeable")
        async with repository.git_lock:
            before = await repository.git.branches()
            base, head = before[pull.base_ref], f"refs/pull/{pull.number}/head"
            try:
                tree = await repository.git.merge_tree(base, head)
            except MergeConflictError as error:
                raise RefusedError(405, "Merge conflict") from error
            message = f"Merge pull request #{pull.number} from {pull.head_repository.owner.login}/{pull.head_ref}"
            parents = (base, pull.head_sha) if method == "merge" else (base,)
            message = f"{message}\n\n{pull.title}" if method == "merge" else f"{pull.title} (#{pull.number})"
            new = NewCommit(pull.base_ref, message, author.login, self.now, parents, tree=tree)
            commit = await repository.git.commit(new)
            pull.merged, pull.merged_at, pull.merged_by, pull.merge_commit_sha = True, self.now, author, commit
            pull.state, pull.closed_at, pull.closed_by, pull.updated_at = "closed", self.now, author, self.now
            await self.branches_moved(author, repository, before)
        self.emit_thread("closed", pull, author)
        for issue in self.closing_issues(pull):
            if issue.repository.may(author, "write"):
                self.set_state(author, issue, "closed")
        return commit

    async def mergeable(self, pull: Pull) -> str:
        """Return GraphQL's `mergeable`: GitHub tries a merge when somebody asks, and tells it who asks again.

        https://docs.github.com/graphql/reference/enums#mergeablestate
        """
        tried = pull.head_sha, pull.base_sha
        if pull.state == "closed" or pull.merge_tried != tried:
            pull.merge_tried = tried
            return "UNKNOWN"
        try:
            await pull.repository.git.merge_tree(pull.base_sha, pull.head_sha)
        except MergeConflictError:
            return "CONFLICTING"
        return "MERGEABLE"

    async def branches_moved(self, pusher: User, repository: Repository, before: Mapping[str, str]) -> None:
        """Send webhooks for every branch that differs from before; the caller holds the repository's git lock."""
        after = await repository.git.branches()
        for branch in sorted(before.keys() | after.keys()):
            old, new = before.get(branch), after.get(branch)
            if old != new:
                repository.pushed_at = self.now
                repository.pushes.append(Push(f"refs/heads/{branch}", old, new, pusher, self.now))
                await self._emit_push(pusher, repository, branch, old, new)
                await self._move_pulls(pusher, repository, branch, new)

    async def _emit_push(
        self, pusher: User, repository: Repository, branch: str, old: str | None, new: str | None
    ) -> None:
        commits = []
        if new is not None:
            excluded = f"^{old}" if old is not None else "--max-count=1"
            for commit, message, name in await repository.git.log(new, excluded):
                commits.append({"id": commit, "message": message, "author": {"name": name}, "distinct": True})
        html = self.payloads.repository_html(repository)
        self.emit(
            "push",
            repository,
            pusher,
            ref=f"refs/heads/{branch}",
            before=old or NO_COMMIT,
            after=new or NO_COMMIT,
            created=old is None,
            deleted=new is None,
            forced=bool(old and new) and not await repository.git.is_ancestor(str(old), str(new)),
            base_ref=None,
            compare=f"{html}/compare/{(old or NO_COMMIT)[:12]}...{(new or NO_COMMIT)[:12]}",
            commits=commits,
            head_commit=commits[-1] if commits else None,
            pusher={"name": pusher.login, "email": f"{pusher.login}@users.noreply.github.com"},
        )

    async def _move_pulls(self, pusher: User, source: Repository, branch: str, commit: str | None) -> None:
        """Send pull_request.synchronize for open pull requests with this head, close those whose head is gone, and
        update the base of those that go into this branch.
        """
        if commit is None:
            for pull in [pull for one in self.world.repositories.values() for pull in one.pulls]:
                if pull.state == "open" and pull.head_repository is source and pull.head_ref == branch:
                    self.set_state(pusher, pull, "closed")
            return
        for repository in self.world.repositories.values():
            for pull in repository.pulls:
                if pull.state == "closed":
                    continue
                if pull.head_repository is source and pull.head_ref == branch:
                    old, pull.head_sha, pull.updated_at = pull.head_sha, commit, self.now
                    await repository.git.fetch_pull_head(pull.number, source.git, commit)
                    self.emit_thread("synchronize", pull, pusher, before=old, after=commit)
                elif repository is source and pull.base_ref == branch:
                    pull.base_sha = commit

    def _new_review(self, author: User, pull: Pull, body: str | None, state: ReviewState) -> Review:
        review = Review(
            id=self.world.next_id(),
            pull=pull,
            author=author,
            body=body,
            state=state,
            commit_id=pull.head_sha,
            submitted_at=self.now,
        )
        pull.reviews.append(review)
        return review

    def _inline(
        self, review: Review, path: str, line: int, body: str, in_reply_to: ReviewComment | None = None
    ) -> ReviewComment:
        check_body("PullRequestReviewComment", body, required=True)
        comment = ReviewComment(
            id=self.world.next_id(),
            thread=review.pull,
            author=review.author,
            original=body,
            created_at=self.now,
            updated_at=self.now,
            review=review,
            path=path,
            line=line,
            commit_id=review.commit_id,
            in_reply_to=in_reply_to,
        )
        review.pull.review_comments.append(comment)
        return comment

    def _emit_review(self, review: Review) -> None:
        own = {"review": self.payloads.review(review), "pull_request": self.payloads.pull(review.pull)}
        self.emit("pull_request_review", review.pull.repository, review.author, action="submitted", **own)
        for comment in review.pull.review_comments:
            if comment.review is review:
                self._emit_comment("created", comment, review.author)


def _refuse_a_second(repository: Repository, source: Repository, head: str, base: str) -> None:
    for pull in repository.pulls:
        same = pull.head_repository is source and (pull.head_ref, pull.base_ref) == (head, base)
        if same and pull.state == "open":
            name = f"{source.owner.login}:{head}"
            raise invalid("PullRequest", "base", f"A pull request already exists for {name}.")
