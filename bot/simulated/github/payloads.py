"""State → the JSON that GitHub sends, in REST answers and in webhooks alike."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bot.simulated.github.app import App
from bot.simulated.github.model import (
    REACTION_CONTENTS,
    Comment,
    Issue,
    Label,
    Permission,
    Pull,
    Reaction,
    Repository,
    Review,
    ReviewComment,
    User,
    node_id,
)

Json = dict[str, Any]


@dataclass(slots=True)
class Payloads:
    """A builder of payloads whose links point at this server."""

    server_url: str
    app: App | None

    @property
    def api_url(self) -> str:
        return self.server_url

    def user(self, user: User) -> Json:
        api = f"{self.api_url}/users/{user.login}"
        return {
            "login": user.login,
            "id": user.id,
            "node_id": user.node_id,
            "avatar_url": f"{self.server_url}/avatars/{user.id}",
            "gravatar_id": "",
            "url": api,
            "html_url": f"{self.server_url}/{user.login}",
            "repos_url": f"{api}/repos",
            "events_url": f"{api}/events{{/privacy}}",
            "type": user.type,
            "user_view_type": "public",
            "site_admin": False,
        }

    def repository(self, repository: Repository) -> Json:
        api, html = self._repository_api(repository), self.repository_html(repository)
        return {
            "id": repository.id,
            "node_id": repository.node_id,
            "name": repository.name,
            "full_name": repository.full_name,
            "private": repository.private,
            "visibility": "private" if repository.private else "public",
            "owner": self.user(repository.owner),
            "html_url": html,
            "description": None,
            "fork": repository.parent is not None,
            "url": api,
            "comments_url": f"{api}/comments{{/number}}",
            "issue_comment_url": f"{api}/issues/comments{{/number}}",
            "issues_url": f"{api}/issues{{/number}}",
            "pulls_url": f"{api}/pulls{{/number}}",
            "compare_url": f"{api}/compare/{{base}}...{{head}}",
            "created_at": timestamp(repository.created_at),
            "pushed_at": timestamp(repository.pushed_at),
            "clone_url": f"{html}.git",
            "git_url": f"{html}.git",
            "archived": False,
            "disabled": False,
            "has_issues": True,
            "default_branch": repository.default_branch,
        }

    def full_repository(self, repository: Repository, permission: Permission) -> Json:
        """Return a repository as `GET /repos/{owner}/{repo}` does, with the caller's permissions."""
        levels = {"admin": "admin", "maintain": "maintain", "push": "write", "triage": "triage", "pull": "read"}
        order = ("none", "read", "triage", "write", "maintain", "admin")
        rights = {name: order.index(permission) >= order.index(level) for name, level in levels.items()}
        payload = {**self.repository(repository), "permissions": rights}
        if repository.parent is not None:
            payload["parent"] = payload["source"] = self.repository(repository.parent)
        return payload

    def label(self, label: Label, repository: Repository) -> Json:
        return {
            "id": label.id,
            "node_id": node_id("LA", label.id),
            "url": f"{self._repository_api(repository)}/labels/{label.name}",
            "name": label.name,
            "color": label.color,
            "default": False,
            "description": None,
        }

    def reaction(self, reaction: Reaction) -> Json:
        return {
            "id": reaction.id,
            "node_id": node_id("REA", reaction.id),
            "user": self.user(reaction.user),
            "content": reaction.content,
            "created_at": timestamp(reaction.created_at),
        }

    def issue(self, issue: Issue) -> Json:
        """Return an issue, or a pull request in the form of an issue (with the `pull_request` links)."""
        api = f"{self._repository_api(issue.repository)}/issues/{issue.number}"
        payload = self._thread(issue) | {
            "url": api,
            "repository_url": self._repository_api(issue.repository),
            "labels_url": f"{api}/labels{{/name}}",
            "comments_url": f"{api}/comments",
            "events_url": f"{api}/events",
            "comments": len(issue.comments),
            "closed_by": None if issue.closed_by is None else self.user(issue.closed_by),
            "reactions": _reaction_summary(issue.reactions, api),
            "state_reason": issue.state_reason or ("completed" if issue.state == "closed" else None),
            "performed_via_github_app": self._app_of(issue.author),
        }
        if isinstance(issue, Pull):
            payload["draft"] = issue.draft
            payload["pull_request"] = {
                "url": self._pull_api(issue),
                "html_url": self.thread_html(issue),
                "diff_url": f"{self.thread_html(issue)}.diff",
                "patch_url": f"{self.thread_html(issue)}.patch",
                "merged_at": timestamp(issue.merged_at),
            }
        return payload

    def pull(self, pull: Pull) -> Json:
        return self._thread(pull) | {
            "url": self._pull_api(pull),
            "issue_url": f"{self._repository_api(pull.repository)}/issues/{pull.number}",
            "comments_url": f"{self._repository_api(pull.repository)}/issues/{pull.number}/comments",
            "review_comments_url": f"{self._pull_api(pull)}/comments",
            "diff_url": f"{self.thread_html(pull)}.diff",
            "patch_url": f"{self.thread_html(pull)}.patch",
            "head": self._side(pull.head_repository, pull.head_ref, pull.head_sha),
            "base": self._side(pull.repository, pull.base_ref, pull.base_sha),
            "draft": pull.draft,
            "merged": pull.merged,
            "merged_at": timestamp(pull.merged_at),
            "merged_by": None if pull.merged_by is None else self.user(pull.merged_by),
            "merge_commit_sha": pull.merge_commit_sha,
            "mergeable": None,
            "mergeable_state": "unknown",
            "rebaseable": None,
            "maintainer_can_modify": False,
            "requested_reviewers": [],
            "requested_teams": [],
            "auto_merge": None,
            "comments": len(pull.comments),
            "review_comments": len(pull.review_comments),
        }

    def comment(self, comment: Comment) -> Json:
        api = f"{self._repository_api(comment.thread.repository)}/issues/comments/{comment.id}"
        return {
            "url": api,
            "html_url": self.comment_html(comment),
            "issue_url": f"{self._repository_api(comment.thread.repository)}/issues/{comment.thread.number}",
            "performed_via_github_app": self._app_of(comment.author),
            **self._written(comment, api),
        }

    @staticmethod
    def diff_hunk(comment: ReviewComment) -> str:
        """The lines of the diff that an inline comment is about."""
        return f"@@ -{comment.line},1 +{comment.line},1 @@"

    def review_comment(self, comment: ReviewComment) -> Json:
        repository = comment.thread.repository
        api = f"{self._repository_api(repository)}/pulls/comments/{comment.id}"
        payload = {
            "url": api,
            "html_url": self.comment_html(comment),
            "pull_request_review_id": comment.review.id,
            "pull_request_url": f"{self._repository_api(repository)}/pulls/{comment.thread.number}",
            "path": comment.path,
            "line": comment.line,
            "original_line": comment.line,
            "start_line": comment.start_line,
            "side": comment.side,
            "subject_type": "line",
            "diff_hunk": self.diff_hunk(comment),
            "commit_id": comment.commit_id,
            "original_commit_id": comment.commit_id,
            **self._written(comment, api),
        }
        if comment.in_reply_to is not None:
            payload["in_reply_to_id"] = comment.in_reply_to.id
        return payload

    def review(self, review: Review) -> Json:
        pull = review.pull
        return {
            "id": review.id,
            "node_id": review.node_id,
            "user": self.user(review.author),
            "body": review.body,
            "commit_id": review.commit_id,
            "submitted_at": timestamp(review.submitted_at),
            "updated_at": timestamp(review.submitted_at),
            "state": review.state,
            "html_url": f"{self.thread_html(pull)}#pullrequestreview-{review.id}",
            "pull_request_url": self._pull_api(pull),
            "author_association": association(pull.repository, review.author),
        }

    def installation(self) -> Json | None:
        """Return the short form that webhooks of an app carry."""
        if self.app is None or not self.app.installed:
            return None
        return {"id": self.app.installation_id, "node_id": node_id("MDIz", self.app.installation_id)}

    def app_object(self, app: App) -> Json:
        return {
            "id": app.id,
            "slug": app.slug,
            "node_id": node_id("A", app.id),
            "name": app.slug,
            "html_url": f"{self.server_url}/apps/{app.slug}",
            "owner": {"login": app.owner, "type": app.owner_type},
            "permissions": app.permissions,
            "events": app.events,
        }

    def repository_html(self, repository: Repository) -> str:
        return f"{self.server_url}/{repository.full_name}"

    def thread_html(self, thread: Issue) -> str:
        kind = "pull" if isinstance(thread, Pull) else "issues"
        return f"{self.repository_html(thread.repository)}/{kind}/{thread.number}"

    def comment_html(self, comment: Comment) -> str:
        anchor = f"discussion_r{comment.id}" if isinstance(comment, ReviewComment) else f"issuecomment-{comment.id}"
        return f"{self.thread_html(comment.thread)}#{anchor}"

    def _thread(self, thread: Issue) -> Json:
        return {
            "id": thread.id,
            "node_id": thread.node_id,
            "html_url": self.thread_html(thread),
            "number": thread.number,
            "state": thread.state,
            "locked": False,
            "active_lock_reason": None,
            "title": thread.title,
            "user": self.user(thread.author),
            "body": thread.body,
            "created_at": timestamp(thread.created_at),
            "updated_at": timestamp(thread.updated_at),
            "closed_at": timestamp(thread.closed_at),
            "assignee": self.user(thread.assignees[0]) if thread.assignees else None,
            "assignees": [self.user(user) for user in thread.assignees],
            "labels": [self.label(label, thread.repository) for label in thread.labels],
            "milestone": None,
            "author_association": association(thread.repository, thread.author),
        }

    def _written(self, comment: Comment, api: str) -> Json:
        return {
            "id": comment.id,
            "node_id": comment.node_id,
            "user": self.user(comment.author),
            "created_at": timestamp(comment.created_at),
            "updated_at": timestamp(comment.updated_at),
            "author_association": association(comment.thread.repository, comment.author),
            "body": comment.body,
            "reactions": _reaction_summary(comment.reactions, api),
        }

    def _side(self, repository: Repository, ref: str, sha: str) -> Json:
        return {
            "label": f"{repository.owner.login}:{ref}",
            "ref": ref,
            "sha": sha,
            "user": self.user(repository.owner),
            "repo": self.repository(repository),
        }

    def _app_of(self, author: User) -> Json | None:
        return self.app_object(self.app) if self.app is not None and author.login == self.app.login else None

    def _repository_api(self, repository: Repository) -> str:
        return f"{self.api_url}/repos/{repository.full_name}"

    def _pull_api(self, pull: Pull) -> str:
        return f"{self._repository_api(pull.repository)}/pulls/{pull.number}"


def association(repository: Repository, author: User) -> str:
    """Return the author's association with the repository, in GitHub's words."""
    if author.id == repository.owner.id:
        return "OWNER"
    return "COLLABORATOR" if repository.is_collaborator(author) else "NONE"


def timestamp(moment: datetime | None) -> str | None:
    """Return ISO 8601 in UTC, to the second, as everywhere in GitHub's API."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _reaction_summary(reactions: Iterable[Reaction], api: str) -> Json:
    given = [reaction.content for reaction in reactions]
    counts: Json = {content: given.count(content) for content in REACTION_CONTENTS}
    return {"url": f"{api}/reactions", "total_count": len(given), **counts}
