"""The part of GitHub that the bot uses: one method per request, values in, values out. Raises GitHubError."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar, assert_never
from urllib.parse import urlsplit

import httpx

from bot.github import answers
from bot.github.answers import (
    BranchPull,
    Identity,
    IssueRef,
    LoggedDelivery,
    Permission,
    Posted,
    PullFacts,
    RateLimit,
    Review,
    ReviewComment,
    ThreadFacts,
    read,
)
from bot.github.auth import AppCredentials, Credentials, TokenCredentials, TokenKey, Tokens
from bot.github.errors import GitHubError, NotFound, Unauthenticated
from bot.github.transport import Clock, Sleep, Transport, reading
from bot.github.uploads import Uploads
from bot.model import Repository, Target

T = TypeVar("T")
ReactionContent = Literal["eyes", "confused"]

# https://docs.github.com/rest/authentication/permissions-required-for-github-apps
APP_RIGHTS = ("contents", "issues", "pull_requests")
REPOSITORY = "/repos/{owner}/{name}"
WEBHOOK_PATH = "/webhooks/github"
# https://docs.github.com/rest/using-the-rest-api/using-pagination-in-the-rest-api#changing-the-number-of-items-per-page
PER_PAGE = 100
SHARED_SECONDS = 1.0
"""A permission is live: an older answer is not shared, nor any with a request that arrived after it was asked for."""
# https://docs.github.com/graphql/reference/objects#pullrequest: REST has no closing issues. At most 100 a page:
# https://docs.github.com/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api#node-limit
CLOSING_ISSUES = """
query($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    pullRequest(number: $number) {
      closingIssuesReferences(first: 100, after: $after) {
        nodes { number repository { databaseId } }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
}
"""


class GitHub:
    """The client of a process. Reads are retried; a write is sent once, and the outbox decides whether to repeat it."""

    def __init__(
        self,
        *,
        api_url: str,
        graphql_url: str,
        credentials: Credentials,
        http: httpx.AsyncClient,
        clock: Clock,
        sleep: Sleep,
        on_new_token: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._api = Transport(http, api_url=api_url, graphql_url=graphql_url, clock=clock, sleep=sleep)
        self._credentials = credentials
        self._clock = clock
        self._tokens = Tokens(credentials, self._api.installation_token, clock, on_new_token)
        self._identity: Identity | None = None
        self._permissions: dict[tuple[str, int, str], tuple[float, asyncio.Task[Permission]]] = {}
        """The look-ups that GitHub has not answered, or answered a moment ago, and when they began."""

    async def identity(self) -> Identity:
        """Return who the bot is; GitHub is asked once."""
        if self._identity is None:
            match self._credentials:
                case TokenCredentials(token):
                    # https://docs.github.com/rest/users/users#get-the-authenticated-user
                    user = await reading(self._api.getitem("/user", oauth_token=token))
                    self._identity = Identity(user["login"], user["id"], user["login"])
                case AppCredentials() as app:
                    self._identity = await self._app_identity(app)
                case _:
                    assert_never(self._credentials)
        return self._identity

    async def repository(self, platform: str, owner: str, name: str) -> Repository:
        """Return the repository that is called `owner/name` now. Raises NotFound where the bot may not see one."""
        variables = {"owner": owner, "name": name}
        installation_id: int | None = None
        match self._credentials:
            case TokenCredentials(token):
                pass
            case AppCredentials() as app:
                installation_id = (await self._installation(app, variables))["id"]
                token = await self._tokens.of_installation(app, TokenKey(installation_id))
            case _:
                assert_never(self._credentials)
        found = await reading(self._api.getitem(REPOSITORY, variables, oauth_token=token))
        return Repository(
            platform, found["id"], found["owner"]["login"], found["name"], found["default_branch"], installation_id
        )

    async def as_named_now(self, repository: Repository) -> Repository:
        """Return the repository as it is now, found by its id: its old name may be another's.

        Raises NotFound where the bot does not see it.
        https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects
        """
        by_id = {"id": str(repository.id)}
        try:
            found: Any = await self._authorised(
                repository, lambda token: self._api.getitem("/repositories/{id}", by_id, oauth_token=token)
            )
        except NotFound as problem:
            raise NotFound(f"{repository.full_name} was deleted, or the bot may not see it") from problem
        owner, name, branch = found["owner"]["login"], found["name"], found["default_branch"]
        return replace(repository, owner=owner, name=name, default_branch=branch)

    @property
    def clock_skew(self) -> timedelta | None:
        """How far GitHub's clock was ahead of ours in its last answer, even a refusal; None before the first."""
        return self._api.clock_skew

    async def rate_limit(self) -> RateLimit | None:
        """Return the rate limit of the token; None for an App, which has one for each installation."""
        if isinstance(self._credentials, AppCredentials):
            return None
        return read(RateLimit, await reading(self._api.getitem("/rate_limit", oauth_token=self._credentials.token)))

    async def missing_rights(self, owner: str, name: str) -> tuple[str, ...]:
        """Return the rights that the bot lacks in this repository. Raises NotFound where the bot may not see it."""
        variables = {"owner": owner, "name": name}
        if isinstance(self._credentials, TokenCredentials):
            found = await reading(self._api.getitem(REPOSITORY, variables, oauth_token=self._credentials.token))
            return () if found["permissions"]["push"] else ("write access",)
        granted = (await self._installation(self._credentials, variables))["permissions"]
        return tuple(f"{right}: write" for right in APP_RIGHTS if granted.get(right) != "write")

    async def permission(self, repository: Repository, login: str, *, arrived_at: float = math.inf) -> Permission:
        """Return the person's live permission, "none" for an outsider. A failure raises: the caller fails closed.

        Callers that ask the same within a second, while GitHub has not answered, share the answer. So do, within that
        second, those whose request arrived, by the event loop's clock, before GitHub was asked. Raises NotFound where
        the bot does not see the repository: GitHub's answer is the same.
        """
        key, now = (repository.platform, repository.id, login), asyncio.get_running_loop().time()
        asked_at, asked = self._permissions.get(key, (-math.inf, None))
        if asked is None or now - asked_at > SHARED_SECONDS or (asked.done() and asked_at < arrived_at):
            asked = asyncio.create_task(self._permission(repository, login))
            self._permissions[key] = now, asked
            asked.add_done_callback(partial(self._keep_permission, key))
        return await asyncio.shield(asked)

    def _keep_permission(self, key: tuple[str, int, str], asked: asyncio.Task[Permission]) -> None:
        """Keep an answer for a moment. A failure is forgotten, also of a look-up whose callers are all gone."""
        if asked.cancelled() or asked.exception() is not None:
            self._forget_permission(key, asked)
        else:
            asyncio.get_running_loop().call_later(SHARED_SECONDS, self._forget_permission, key, asked)

    def _forget_permission(self, key: tuple[str, int, str], asked: asyncio.Task[Permission]) -> None:
        if self._permissions.get(key, (0.0, None))[1] is asked:
            del self._permissions[key]

    async def _permission(self, repository: Repository, login: str) -> Permission:
        try:
            answer = await self.get(repository, "/collaborators/{login}/permission", login=login)
        except NotFound:
            await self.as_named_now(repository)
            return "none"
        return answers.permission(answer)

    async def closing_issues(self, repository: Repository, number: int) -> tuple[IssueRef, ...]:
        """Return the issues, of any repository, that the pull request closes when it is merged."""
        found: list[IssueRef] = []
        after: str | None = None
        while True:
            found_page = await self.query(repository, CLOSING_ISSUES, number=number, after=after)
            page, after = answers.closing_issues(found_page)
            found += page
            if after is None:
                return tuple(found)

    async def pull(self, repository: Repository, number: int) -> PullFacts:
        """Return the pull request as it is now."""
        return read(PullFacts, await self.get(repository, "/pulls/{number}", number=str(number)))

    async def thread(self, repository: Repository, number: int) -> ThreadFacts:
        """Return the issue or pull request as it is now. Raises NotFound where there is none."""
        return answers.thread_facts(await self.get(repository, "/issues/{number}", number=str(number)))

    async def merged_head(self, repository: Repository, branch: str) -> str | None:
        """Return the commit that was merged last from this branch of the repository itself, None where none was."""
        path = "/pulls{?state,head,per_page}"
        head = f"{repository.owner}:{branch}"
        return answers.newest_merged_head(await self.get_all(repository, path, state="closed", head=head))

    async def pulls_of(self, repository: Repository, branch: str) -> tuple[BranchPull, ...]:
        """Return all pull requests from this branch of the repository itself, newest first."""
        path, head = "/pulls{?state,head,per_page}", f"{repository.owner}:{branch}"
        return answers.branch_pulls(await self.get_all(repository, path, state="all", head=head), repository.id)

    async def create_pull(
        self, repository: Repository, *, head: str, base: str, title: str, body: str, draft: bool
    ) -> BranchPull:
        """Open a pull request; Refused with status 422 where one is open or there is nothing to merge.

        https://docs.github.com/rest/pulls/pulls#create-a-pull-request
        """
        data = {"head": head, "base": base, "title": title, "body": body, "draft": draft}
        return read(BranchPull, await self._post(repository, "/pulls", data))

    async def is_protected(self, repository: Repository, branch: str) -> bool:
        """Return whether a rule protects the branch; a branch that does not exist is not protected."""
        try:
            answer = await self.get(repository, "/branches/{branch}", branch=branch)
        except NotFound:
            return False
        return bool(answer["protected"])

    async def review(self, repository: Repository, number: int, review_id: int) -> Review | None:
        """Return the review's own text, None when the review is gone."""
        path = "/pulls/{number}/reviews/{review}"
        try:
            found = await self.get(repository, path, number=str(number), review=str(review_id))
        except NotFound:
            return None
        return read(Review, found)

    async def review_comments(self, repository: Repository, number: int, review_id: int) -> tuple[ReviewComment, ...]:
        """Return the inline comments of one review, none when it is gone."""
        path = "/pulls/{number}/reviews/{review}/comments{?per_page}"
        try:
            found = await self.get_all(repository, path, number=str(number), review=str(review_id))
        except NotFound:
            return ()
        # Where the line is gone, its place in the commit that was commented on has to do.
        placed = ({**one, "line": one.get("line") or one.get("original_line")} for one in found)
        return tuple(read(ReviewComment, one) for one in placed)

    async def react(self, repository: Repository, number: int, target: Target, content: ReactionContent) -> None:
        """React; a repeated reaction changes nothing (https://docs.github.com/rest/reactions/reactions)."""
        match target.kind:
            case "comment":
                path, identifier = "/issues/comments/{id}/reactions", target.id
            case "review-comment":
                path, identifier = "/pulls/comments/{id}/reactions", target.id
            case "issue" | "pull" | "review":  # a review itself takes no reactions over REST: its pull request does
                path, identifier = "/issues/{id}/reactions", number
            case _:
                assert_never(target.kind)
        await self._post(repository, path, {"content": content}, id=str(identifier))

    async def create_comment(self, repository: Repository, number: int, target: Target, body: str) -> Posted:
        """Comment: in the thread of the inline comment that is answered, else at the end of the conversation."""
        if target.kind == "review-comment":
            # Only a thread's first comment can be replied to
            # (https://docs.github.com/rest/pulls/comments#create-a-reply-for-a-review-comment).
            asked = await self.get(repository, "/pulls/comments/{id}", id=str(target.id))
            first = asked.get("in_reply_to_id") or target.id
            path, more = "/pulls/{number}/comments/{first}/replies", {"first": str(first)}
        else:
            path, more = "/issues/{number}/comments", {}
        return read(Posted, await self._post(repository, path, {"body": body}, number=str(number), **more))

    async def edit_comment(self, repository: Repository, target: Target, comment_id: int, body: str) -> Posted:
        """Replace the text of the bot's own comment that answers `target`."""
        path = REPOSITORY + ("/pulls" if target.kind == "review-comment" else "/issues") + "/comments/{id}"
        variables, data = self._variables(repository, id=str(comment_id)), {"body": body}
        edited = await self._authorised(
            repository, lambda token: self._api.patch(path, variables, data=data, oauth_token=token)
        )
        return read(Posted, edited)

    async def find_comment(
        self, repository: Repository, number: int, target: Target, marker: str, since: datetime
    ) -> Posted | None:
        """Return the bot's own comment that ends with `marker` and was written after `since`, or None."""
        own = await self.identity()
        path = "/pulls/{number}/comments" if target.kind == "review-comment" else "/issues/{number}/comments"
        stamp = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = await self.get_all(repository, path + "{?per_page,since}", number=str(number), since=stamp)
        for answer in found:
            author = answer.get("user")
            if author and author["id"] == own.id and (answer["body"] or "").rstrip().endswith(marker):
                return read(Posted, answer)
        return None

    @property
    def is_app(self) -> bool:
        """Whether the bot is a GitHub App, which has one webhook for all repositories."""
        return isinstance(self._credentials, AppCredentials)

    async def webhooks(self, repository: Repository) -> dict[int, datetime]:
        """Return the repository's webhooks that lead to a bot, and when they were made.

        Raises NotFound or Refused without the permission.

        https://docs.github.com/rest/repos/webhooks#list-repository-webhooks
        """
        found = await self.get_all(repository, "/hooks{?per_page}")
        return {
            hook["id"]: datetime.fromisoformat(hook["created_at"])
            for hook in found
            if urlsplit(hook["config"].get("url", "")).path.endswith(WEBHOOK_PATH)
        }

    async def logged_deliveries(
        self, hook: tuple[Repository, int] | None, since: datetime, most: int
    ) -> tuple[list[LoggedDelivery], bool]:
        """Return what a repository's webhook, or the App's (None), delivered since then, the newest first.

        At most `most`; the second value says whether these are all.
        """
        path = "/deliveries{?per_page}"
        if hook is None:
            app = self._app()
            return await self._api.as_app(app, lambda jwt: self._log(f"/app/hook{path}", {}, since, most, jwt))
        repository, hook_id = hook
        variables = self._variables(repository, id=str(hook_id))
        path = f"{REPOSITORY}/hooks/{{id}}{path}"
        return await self._authorised(repository, lambda token: self._log(path, variables, since, most, None, token))

    async def logged_payload(self, hook: tuple[Repository, int] | None, delivery: int) -> Any:
        """Return the payload of a delivery in GitHub's log.

        https://docs.github.com/rest/apps/webhooks#get-a-delivery-for-an-app-webhook
        """
        if hook is None:
            path, which = "/app/hook/deliveries/{delivery}", {"delivery": str(delivery)}
            found = await self._api.as_app(self._app(), lambda jwt: self._api.getitem(path, which, jwt=jwt))
        else:
            repository, hook_id = hook
            path = "/hooks/{id}/deliveries/{delivery}"
            found = await self.get(repository, path, id=str(hook_id), delivery=str(delivery))
        return found["request"]["payload"]

    async def changed_since(self, repository: Repository, what: str, since: datetime, most: int) -> list[Any]:
        """Return comments or threads, all of the repository, that changed since then, oldest first.

        About `most`: all of the last second are there, so that the next look can begin after it.
        `what`: `issues/comments`, `pulls/comments` or `issues`, as https://docs.github.com/rest/issues/comments#list-issue-comments-for-a-repository
        """
        path = f"{REPOSITORY}/{what}{{?per_page,since,state,sort,direction}}"
        stamp = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        order = {"sort": "updated", "direction": "asc", "per_page": str(PER_PAGE), "since": stamp}
        variables = self._variables(repository, **order, **({"state": "all"} if what == "issues" else {}))

        async def some(token: str) -> list[Any]:
            found: list[Any] = []
            async with aclosing(self._api.getiter(path, variables, oauth_token=token)) as items:
                async for item in items:
                    if len(found) >= most and item["updated_at"] != found[-1]["updated_at"]:
                        break
                    found.append(item)
            return found

        return await self._authorised(repository, some)

    async def _log(
        self,
        path: str,
        variables: dict[str, str],
        since: datetime,
        most: int,
        jwt: str | None,
        token: str | None = None,
    ) -> tuple[list[LoggedDelivery], bool]:
        found: list[LoggedDelivery] = []
        items = self._api.getiter(path, {**variables, "per_page": str(PER_PAGE)}, jwt=jwt, oauth_token=token)
        async with aclosing(items):
            async for item in items:
                delivery = read(LoggedDelivery, item)
                if delivery.at < since:
                    break
                if len(found) >= most:
                    return found, False
                found.append(delivery)
        return found, True

    def _app(self) -> AppCredentials:
        if not isinstance(self._credentials, AppCredentials):
            raise TypeError("the bot is no GitHub App")
        return self._credentials

    async def git_token(self, repository: Repository) -> str:
        """Return the token that git fetches and pushes with: for an App it gives access to this repository only."""
        return await self._tokens.of(repository, only_this_repository=True)

    def reject_token(self, token: str) -> None:
        """Forget a token that GitHub's git server refused: the next `git_token` is a new one."""
        self._tokens.reject(token)

    async def _app_identity(self, app: AppCredentials) -> Identity:
        """Return the App's bot account (https://docs.github.com/rest/apps/apps#get-the-authenticated-app)."""
        slug = (await self._api.as_app(app, lambda jwt: self._api.getitem("/app", jwt=jwt)))["slug"]
        login = {"login": f"{slug}[bot]"}
        try:
            user = await reading(self._api.getitem("/users/{login}", login))
        except GitHubError:
            # A private server wants a token, and a shared address may have used up its anonymous requests.
            # https://docs.github.com/rest/apps/apps#list-installations-for-the-authenticated-app
            installations = await self._api.as_app(app, lambda jwt: self._api.getitem("/app/installations", jwt=jwt))
            if not installations:
                raise Unauthenticated("the GitHub App is not installed anywhere yet") from None
            token = await self._tokens.of_installation(app, TokenKey(installations[0]["id"]))
            user = await reading(self._api.getitem("/users/{login}", login, oauth_token=token))
        return Identity(user["login"], user["id"], slug)

    async def _installation(self, app: AppCredentials, repository: dict[str, str]) -> Any:
        """Return https://docs.github.com/rest/apps/apps#get-a-repository-installation-for-the-authenticated-app."""
        path = REPOSITORY + "/installation"
        return await self._api.as_app(app, lambda jwt: self._api.getitem(path, repository, jwt=jwt))

    async def get(self, repository: Repository, path: str, **variables: str) -> Any:
        """Return GitHub's answer to a GET below the repository; `path` is a URI template (RFC 6570)."""
        expanded = self._variables(repository, **variables)
        return await self._authorised(
            repository, lambda token: self._api.getitem(REPOSITORY + path, expanded, oauth_token=token)
        )

    async def get_all(self, repository: Repository, path: str, **variables: str) -> list[Any]:
        """Return the items of every page of a list below the repository."""
        expanded = self._variables(repository, per_page=str(PER_PAGE), **variables)

        async def every_page(token: str) -> list[Any]:
            return [item async for item in self._api.getiter(REPOSITORY + path, expanded, oauth_token=token)]

        return await self._authorised(repository, every_page)

    async def _post(self, repository: Repository, path: str, data: Mapping[str, object], **variables: str) -> Any:
        expanded = self._variables(repository, **variables)
        return await self._authorised(
            repository, lambda token: self._api.post(REPOSITORY + path, expanded, data=data, oauth_token=token)
        )

    async def query(self, repository: Repository, document: str, **variables: Any) -> Any:
        """Return the data of a GraphQL query; the repository's owner and name are among its variables."""
        named = {"owner": repository.owner, "name": repository.name, **variables}
        return await self._authorised(repository, lambda token: self._api.query(document, named, token=token))

    async def get_end_of_text(self, repository: Repository, path: str, most_bytes: int, **variables: str) -> str:
        """Return the last `most_bytes` of a text below the repository, such as a log."""
        expanded = self._variables(repository, **variables)
        return await self._authorised(
            repository, lambda token: self._api.end_of_text(REPOSITORY + path, expanded, most_bytes, token=token)
        )

    async def download(self, repository: Repository, url: str, most_bytes: int, uploads: Uploads) -> bytes:
        """Return an attachment of the repository's threads. Only the server itself gets a token, for this repository.

        It needs one where the repository is private. Elsewhere a link must not open what only the bot may read.
        """
        token = None
        if uploads.wants_token(url):
            token = await self._tokens.of(repository, only_this_repository=True)
        return await self._api.download(url, most_bytes, token=token, may_lead_to=uploads.may_lead_to)

    async def _authorised(self, repository: Repository, use: Callable[[str], Awaitable[T]]) -> T:
        """Call `use` with a token; a token that GitHub rejects is replaced once: a request with a 401 had no effect."""
        token = await self._tokens.of(repository)
        try:
            return await reading(use(token))
        except Unauthenticated:
            if not self._tokens.reject(token):
                raise
        return await reading(use(await self._tokens.of(repository)))

    @staticmethod
    def _variables(repository: Repository, **more: str) -> dict[str, str]:
        return {"owner": repository.owner, "name": repository.name, **more}
