"""The part of GitHub that the bot uses: one method per request, values in, values out. Raises GitHubError."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from bot.github import answers
from bot.github.answers import (
    Blocker,
    LoggedDelivery,
    LogPage,
    OwnReview,
    Permission,
    Posted,
    Pull,
    ReviewComment,
    Webhook,
    read,
)
from bot.github.auth import REFUSED_WAITS_SECONDS, AppCredentials, Credentials, Tokens
from bot.github.errors import GitHubError, Gone, NotFound, Refused, Unauthenticated
from bot.github.graphql import Answer, Path
from bot.github.transport import BLOCKED_BY, Clock, Sleep, Transport
from bot.github.uploads import Uploads
from bot.model import Actor, Repository, Target, Thread
from bot.tasks import concurrently

T = TypeVar("T")
ReactionContent = Literal["eyes", "confused"]
Hook = tuple[Repository, int]
"""A webhook of a repository, by its id."""
Value = str | int | None
"""A variable of a path; one that is None is left out."""
Call = Callable[..., Awaitable[T]]
"""A request of the transport: a path, its variables, and the token or the App's own."""

# https://docs.github.com/rest/authentication/permissions-required-for-github-apps
APP_RIGHTS = ("contents", "issues", "pull_requests")
"""What the bot writes."""
APP_PERMISSIONS: Mapping[str, str] = {
    **dict.fromkeys(APP_RIGHTS, "write"),
    **dict.fromkeys(("metadata", "checks", "statuses", "actions"), "read"),
}
"""All that an App needs: failing checks are told to the agent with the end of their logs."""
CHECK_EVENTS = ("check_run", "check_suite", "workflow_run")
"""Without these the bot fixes no failing checks."""
APP_EVENTS = (
    *("issues", "issue_comment", "pull_request", "pull_request_review", "pull_request_review_comment"),
    *CHECK_EVENTS,
    "repository",  # that it was deleted
)
# https://docs.github.com/webhooks/webhook-events-and-payloads#issue_dependencies
NEWER_EVENTS = ("issue_dependencies",)
"""Nothing is missed without these. Older Enterprise Servers do not know them and take no webhook that asks for them."""
GITHUB_COM = "github.com"
NAMED = "/repos/{owner}/{name}"
"""A repository that somebody names. All other requests go by id: a name can be another's by now, or by a lie."""
# Where GitHub leads from a former name, and to the next page of a list:
# https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects
REPOSITORY = "/repositories/{repository}"
# https://docs.github.com/rest/apps/apps#get-a-repository-installation-for-the-authenticated-app
INSTALLATION = "/installation"
PULLS = "/pulls{?state,head,per_page}"
CLASSIC = "protected"
TAKES_NO_PUSH = frozenset({CLASSIC, "update", "pull_request", "merge_queue"})
"""The rules under which GitHub takes no plain push to a branch that it has.

https://docs.github.com/repositories/configuring-branches-and-merges-in-your-repository/managing-rulesets/available-rules-for-rulesets
"""
WEBHOOK_PATH = "/webhooks/github"
NOWHERE = "https://threadtree.invalid"
"""Where a webhook leads whose log is all that is wanted: a name that leads nowhere, ever (RFC 2606)."""
# https://docs.github.com/rest/using-the-rest-api/using-pagination-in-the-rest-api#changing-the-number-of-items-per-page
PER_PAGE = 100
PER_FIRST_PAGE = 30
"""The items of a log's first page, which is asked for again and again: a small page is kept."""
# https://docs.github.com/graphql/reference/objects#pullrequest: REST has no closing issues. At most 100 a page:
# https://docs.github.com/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api#node-limit
CLOSING_ISSUES = """
query($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    databaseId
    pullRequest(number: $number) {
      closingIssuesReferences(first: 100, after: $after) {
        nodes { number repository { databaseId } }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
}
"""


def events_of(platform: str) -> tuple[str, ...]:
    """Return the events that an App or a webhook on this server is to send."""
    return (*APP_EVENTS, *(NEWER_EVENTS if platform == GITHUB_COM else ()))


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
        app = credentials if isinstance(credentials, AppCredentials) else None
        self.is_app = app is not None
        """Whether the bot is a GitHub App, which has one webhook for all repositories."""
        self._api = Transport(http, api_url=api_url, graphql_url=graphql_url, app=app, clock=clock, sleep=sleep)
        self._sleep = sleep
        self._tokens = Tokens(credentials, self._api.installation_token, clock, on_new_token)
        self._identity: answers.BotIdentity | None = None
        self._shown: set[tuple[str, int]] = set()
        """The new tokens, and the repositories that GitHub has shown to them."""

    async def identity(self) -> answers.BotIdentity:
        """Return who the bot is; GitHub is asked once."""
        if self._identity is None:
            if self.is_app:
                self._identity = await self._app_identity()
            else:
                # https://docs.github.com/rest/users/users#get-the-authenticated-user
                user = await self._api.getitem("/user", oauth_token=self._tokens.personal)
                self._identity = answers.BotIdentity(user["login"], user["id"], user["login"])
        return self._identity

    async def repository(self, platform: str, owner: str, name: str) -> Repository:
        """Return the repository that is called `owner/name` now. Raises NotFound where the bot may not see one."""
        token, installation_id, named = self._tokens.personal, None, {"owner": owner, "name": name}
        if self.is_app:
            installation_id = (await self._of_app(NAMED + INSTALLATION, **named))["id"]
            token = await self._tokens.of_installation(installation_id)
        return repository_of(platform, await self._api.getitem(NAMED, named, oauth_token=token), installation_id)

    async def by_id(self, repository: Repository) -> Repository:
        """Return the repository of this id as GitHub tells it now: names, default branch, the App's installation there.

        Raises NotFound where the bot does not see it.
        """
        try:
            installation_id = None
            if self.is_app:
                of_app = await self._of_app(REPOSITORY + INSTALLATION, repository=repository.id)
                installation_id = of_app["id"]
            found = await self.get(replace(repository, installation_id=installation_id), "")
            return repository_of(repository.platform, found, installation_id)
        except NotFound as problem:
            raise NotFound(f"{repository.full_name} was deleted, or the bot may not see it") from problem

    async def as_named_now(self, repository: Repository) -> Repository:
        """As `by_id`, of a repository whose installation GitHub has told before: it stays the same with the owner."""
        if self.is_app:
            with suppress(NotFound, Unauthenticated):
                now = repository_of(repository.platform, await self.get(repository, ""), repository.installation_id)
                if now.owner == repository.owner:
                    return now
        return await self.by_id(repository)

    @property
    def clock_skew(self) -> timedelta | None:
        """How far GitHub's clock was ahead of ours in its last answer, even a refusal; None before the first."""
        return self._api.clock_skew

    async def rate_limit(self) -> answers.RateLimit | None:
        """Return the rate limit of the token; None for an App, which has one for each installation."""
        if self.is_app:
            return None
        return read(answers.RateLimit, await self._api.getitem("/rate_limit", oauth_token=self._tokens.personal))

    async def missing_rights(self, owner: str, name: str) -> tuple[str, ...]:
        """Return the rights that the bot lacks in this repository. Raises NotFound where the bot may not see it."""
        if not self.is_app:
            named = {"owner": owner, "name": name}
            found = await self._api.getitem(NAMED, named, oauth_token=self._tokens.personal)
            return () if found["permissions"]["push"] else ("write access",)
        granted = (await self._of_app(NAMED + INSTALLATION, owner=owner, name=name))["permissions"]
        return tuple(f"{right}: write" for right in APP_RIGHTS if granted.get(right) != "write")

    async def app_lacks(self) -> tuple[str, ...]:
        """Return what the App's own settings lack: permissions, events, the webhook's address. A token lacks nothing.

        https://docs.github.com/rest/apps/apps#get-the-authenticated-app
        https://docs.github.com/rest/apps/webhooks#get-a-webhook-configuration-for-an-app
        """
        if not self.is_app:
            return ()
        app, url = await self._of_app("/app"), await self.app_webhook_url()
        leads_here = urlsplit(url).path.endswith(WEBHOOK_PATH)
        return (
            *(
                f"the permission `{right}: {level}`"
                for right, level in APP_PERMISSIONS.items()
                if app["permissions"].get(right) not in (level, "write")
            ),
            *(f"the event `{event}`" for event in APP_EVENTS if event not in app["events"]),
            *(() if leads_here else (f"a webhook that leads to {WEBHOOK_PATH}",)),
        )

    async def app_webhook_url(self) -> str:
        """Return where the App's webhook leads, empty where it has none."""
        return (await self._of_app("/app/hook/config")).get("url") or ""

    async def permission(self, repository: Repository, person: Actor) -> tuple[Permission, str]:
        """Return the person's live permission, "none" for an outsider, and the login of their account as it is now.

        A failure raises: the caller fails closed. GitHub is asked by login, and the account that it answers for must
        have the person's id; who renamed the account is asked for again. With a new token it is asked twice, since
        people read of a denial. Raises NotFound where the bot does not see the repository: GitHub's answer is the same.
        """
        found = await self._permission(repository, person.login, person.id)
        if found is None:
            login = await self._login_of(repository, person.id) or person.login
            if login != person.login or self._tokens.is_new(None):
                found, person = await self._permission(repository, login, person.id), replace(person, login=login)
        if found is None:
            await self.as_named_now(repository)
        return found or "none", person.login

    async def _permission(self, repository: Repository, login: str, account: int) -> Permission | None:
        """Return what the account of this login may do, None where there is none, or it has another id.

        https://docs.github.com/rest/collaborators/collaborators#get-repository-permissions-for-a-user
        """
        answer = await self.get_if_there(repository, "/collaborators/{login}/permission", login=login)
        # GitHub always says whose it is, null for nobody's. A server that knows no such word is believed without it.
        them = answer.get("user", {}) if answer is not None else None
        return answers.permission(answer) if them is not None and them.get("id", account) == account else None

    async def _login_of(self, repository: Repository, account: int) -> str | None:
        """Return the present login of an account: https://docs.github.com/rest/users/users#get-a-user-using-their-id"""
        ask = partial(self._api.getitem, "/user/{account}", {"account": account})
        try:
            found = await self._authorised(repository, lambda token: ask(oauth_token=token))
        except NotFound:
            return None
        login: str | None = found.get("login")
        return login

    async def may_read(self, repository: Repository, login: str) -> bool:
        """Return whether the person can read the repository."""
        answer = await self.get(repository, "/collaborators/{login}/permission", login=login)
        return answers.permission(answer) != "none"

    async def person_of_code(self, address: str, form: Mapping[str, str]) -> tuple[str, int]:
        """Return login and id of the person for whom GitHub gave a code, which goes to `address` with the form.

        Raises Refused for a code that is wrong, old or used.
        """
        person = await self._api.person_of_code(address, form)
        return str(person["login"]), int(person["id"])

    async def of_organisation(self, org: str, path: str, **variables: Value) -> Any:
        """Return GitHub's answer to a GET below the organisation. Raises NotFound where the App is not installed there.

        https://docs.github.com/rest/apps/apps#get-an-organization-installation-for-the-authenticated-app
        """
        token = self._tokens.personal
        if self.is_app:
            installation = await self._of_app("/orgs/{org}/installation", org=org)
            token = await self._tokens.of_installation(installation["id"])
        return await self._api.getitem("/orgs/{org}" + path, {"org": org, **variables}, oauth_token=token)

    async def closing_issues(self, repository: Repository, number: int) -> tuple[int, ...]:
        """Return the issues of the same repository that the pull request closes when it is merged."""
        found: list[int] = []
        page: Any = {"hasNextPage": True, "endCursor": None}
        while page["hasNextPage"]:
            need = ("repository", "pullRequest", "closingIssuesReferences")
            answer = await self.ask(repository, CLOSING_ISSUES, need, number=number, after=page["endCursor"])
            part = answer.needed
            found += [one["number"] for one in answers.nodes(part) if one["repository"]["databaseId"] == repository.id]
            page = part["pageInfo"]
        return tuple(found)

    async def pull(self, repository: Repository, number: int) -> Pull:
        """Return the pull request as it is now."""
        return read(Pull, await self.get(repository, "/pulls/{number}", number=number))

    async def mergeable(self, repository: Repository, numbers: Sequence[int]) -> tuple[answers.Mergeable | None, ...]:
        """Return whether these pull requests can be merged, in their order: one request for all.

        None where GitHub does not tell it of one.
        """
        fields = "title headRefOid baseRefName state mergeable"
        pulls = " ".join(f"p{number}: pullRequest(number: {number}) {{ {fields} }}" for number in numbers)
        named = f"repository(owner: $owner, name: $name) {{ databaseId {pulls} }}"
        document = f"query($owner: String!, $name: String!) {{ {named} }}"
        found = (await self.ask(repository, document, ("repository",))).needed
        told = (found[f"p{number}"] for number in numbers)
        return tuple(one and read(answers.Mergeable, one) for one in told)

    async def thread(self, repository: Repository, number: int) -> Thread:
        """Return the issue or pull request as it is now. Raises NotFound where there is none."""
        return answers.thread(await self.get(repository, "/issues/{number}", number=number))

    async def content(self, repository: Repository, file: str) -> answers.Content | None:
        """Return a file of the default branch, None where there is none.

        https://docs.github.com/rest/repos/contents#get-repository-content
        """
        found = await self.get_if_there(repository, "/contents/{+file}", file=file)
        return None if found is None else answers.content(found)

    async def changed_by(self, repository: Repository, file: str) -> str | None:
        """Return the last commit of the default branch that changed the file, None where there is none.

        https://docs.github.com/rest/commits/commits#list-commits
        """
        found = await self.get(repository, f"/commits?{urlencode({'path': file, 'per_page': 1})}")
        return str(found[0]["sha"]) if found else None

    async def person(self, repository: Repository, login: str) -> Actor | None:
        """Return the account that has this login now, None where there is none; asked as the bot of the repository."""
        ask = partial(self._api.getitem, "/users/{login}", {"login": login})
        try:
            found = await self._authorised(repository, lambda token: ask(oauth_token=token))
        except NotFound:
            return None
        return Actor(found["login"], found["id"], found.get("type") == "Bot")

    async def create_issue(self, repository: Repository, title: str, body: str, label: str) -> int:
        """Open an issue and return its number: https://docs.github.com/rest/issues/issues#create-an-issue"""
        made = await self._post(repository, "/issues", {"title": title, "body": body, "labels": [label]})
        return int(made["number"])

    async def find_issue(self, repository: Repository, marker: str, since: datetime) -> int | None:
        """Return the number of the bot's own issue that ends with `marker` and changed after `since`, or None."""
        own, stamp = await self.identity(), since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = "/issues{?state,creator,since,per_page}"
        found = await self.get_all(repository, path, state="all", creator=own.login, since=stamp)
        mine = (one for one in found if one["user"] and one["user"]["id"] == own.id)
        return next((int(one["number"]) for one in mine if (one["body"] or "").rstrip().endswith(marker)), None)

    async def blockers(self, repository: Repository, number: int) -> tuple[list[Blocker], int]:
        """Return the issues that block this one, and how many more there are of which GitHub shows the bot nothing.

        None where the server knows no such relations.
        https://docs.github.com/rest/issues/issue-dependencies#list-dependencies-an-issue-is-blocked-by
        """
        try:
            found = await self.get_all(repository, f"/issues/{{number}}{BLOCKED_BY}{{?per_page}}", number=number)
        except NotFound:
            return [], 0
        shown = [one for one in found if one and one.get("repository_url") and one.get("state")]
        return [read(Blocker, one) for one in shown], len(found) - len(shown)

    async def merged_head(self, repository: Repository, branch: str) -> str | None:
        """Return the commit that was merged last from this branch of the repository itself, None where none was."""
        merged = [(pull.merged_at, pull.head_sha) for pull in await self.pulls_of(repository, branch) if pull.merged_at]
        return max(merged, key=lambda one: one[0])[1] if merged else None

    async def pulls_of(self, repository: Repository, branch: str) -> tuple[Pull, ...]:
        """Return all pull requests from this branch of the repository itself, newest first."""
        found = await self.get_all(repository, PULLS, state="all", head=f"{repository.owner}:{branch}")
        # A fork of the same owner has the same label.
        return tuple(pull for one in found if (pull := read(Pull, one)).head_repository_id == repository.id)

    async def create_pull(
        self, repository: Repository, *, head: str, base: str, title: str, body: str, draft: bool
    ) -> Pull:
        """Open a pull request; Refused with status 422 where one is open or there is nothing to merge.

        https://docs.github.com/rest/pulls/pulls#create-a-pull-request
        """
        data = {"head": head, "base": base, "title": title, "body": body, "draft": draft}
        return read(Pull, await self._post(repository, "/pulls", data))

    async def create_commit(self, repository: Repository, message: str, tree: str, parents: Sequence[str]) -> str:
        """Return the name of a commit that GitHub makes: without author and committer, it signs those of an App.

        https://docs.github.com/rest/git/commits#create-a-commit
        """
        data = {"message": message, "tree": tree, "parents": list(parents)}
        return str((await self._post(repository, "/git/commits", data))["sha"])

    async def signing_keys(self, login: str) -> list[str]:
        """Return the public SSH keys that the account signs commits with.

        https://docs.github.com/rest/users/ssh-signing-keys#list-ssh-signing-keys-for-a-user
        """
        path = "/users/{login}/ssh_signing_keys{?per_page}"
        found = self._api.getiter(path, {"login": login, "per_page": PER_PAGE}, oauth_token=self._tokens.personal)
        return [str(one["key"]) async for one in found]

    async def has_address(self, address: str) -> bool:
        """Return whether the token's account has confirmed this mail address.

        https://docs.github.com/rest/users/emails#list-email-addresses-for-the-authenticated-user
        """
        found = self._api.getiter("/user/emails{?per_page}", {"per_page": PER_PAGE}, oauth_token=self._tokens.personal)
        return address.lower() in [str(one["email"]).lower() async for one in found if one["verified"]]

    async def edit_pull(self, repository: Repository, number: int, title: str, body: str) -> None:
        """Replace title and description: https://docs.github.com/rest/pulls/pulls#update-a-pull-request"""
        edit = partial(self._api.patch, data={"title": title, "body": body})
        await self._below(repository, edit, "/pulls/{number}", number=number)

    async def is_protected(self, repository: Repository, branch: str) -> bool:
        """Return whether the branch takes no plain push; one that does not exist is not protected."""
        return not TAKES_NO_PUSH.isdisjoint(await self.branch_rules(repository, branch))

    async def branch_rules(self, repository: Repository, branch: str, *, is_there: bool = True) -> frozenset[str]:
        """Return the types of the rules for a branch of this name, and `protected` where a classic rule protects it.

        GitHub says `protected` of a branch under any rule, also one of names alone. Where it does not tell the rules,
        that has to do.
        """
        async with concurrently(self.rulesets(repository, branch)) as asking:
            found = await self.get_if_there(repository, "/branches/{branch}", branch=branch) if is_there else None
            rules = frozenset(rule.type for rule in await asking or ())
        if found is None or not found["protected"]:
            return rules
        # https://docs.github.com/rest/branches/branches#get-a-branch: this part is about the classic rule.
        is_classic = found.get("protection", {}).get("enabled", not rules)
        return rules | ({CLASSIC} if is_classic else frozenset())

    async def rulesets(self, repository: Repository, branch: str) -> list[answers.BranchRule] | None:
        """Return the rules of rulesets for a branch of this name, there or not; None where GitHub does not tell them.

        https://docs.github.com/rest/repos/rules#get-rules-for-a-branch
        """
        try:
            found = await self.get_all(repository, "/rules/branches/{branch}{?per_page}", branch=branch)
        except (NotFound, Refused):
            return None
        return [read(answers.BranchRule, rule) for rule in found]

    async def review(self, repository: Repository, number: int, review_id: int) -> answers.Review | None:
        """Return the review's own text, None when the review is gone."""
        path = "/pulls/{number}/reviews/{review}"
        found = await self.get_if_there(repository, path, number=number, review=review_id)
        return read(answers.Review, found) if found is not None else None

    async def review_comments(self, repository: Repository, number: int, review_id: int) -> tuple[ReviewComment, ...]:
        """Return the inline comments of one review, none when it is gone."""
        path = "/pulls/{number}/reviews/{review}/comments{?per_page}"
        try:
            found = await self.get_all(repository, path, number=number, review=review_id)
        except NotFound:
            return ()
        # Where the line is gone, its place in the commit that was commented on has to do.
        placed = ({**one, "line": one.get("line") or one.get("original_line")} for one in found)
        return tuple(read(ReviewComment, one) for one in placed)

    async def react(self, repository: Repository, number: int, target: Target, content: ReactionContent) -> None:
        """React; a repeated reaction changes nothing (https://docs.github.com/rest/reactions/reactions)."""
        if target.kind == "review":
            # Over REST a review takes none: https://docs.github.com/graphql/reference/mutations#addreaction
            review = await self.get(repository, "/pulls/{number}/reviews/{id}", number=number, id=target.id)
            await self._change(repository, "addReaction", subjectId=review["node_id"], content=content.upper())
            return
        is_comment = target.kind in ("comment", "review-comment")
        path, of = (_comment_path(target), target.id) if is_comment else ("/issues/{id}", number)
        await self._post(repository, f"{path}/reactions", {"content": content}, id=of)

    async def create_comment(self, repository: Repository, number: int, target: Target, body: str) -> Posted:
        """Comment: in the thread of the inline comment that is answered, else at the end of the conversation."""
        if target.kind == "review-comment":
            # Only a thread's first comment can be replied to
            # (https://docs.github.com/rest/pulls/comments#create-a-reply-for-a-review-comment).
            asked = await self.get(repository, "/pulls/comments/{id}", id=target.id)
            first = asked.get("in_reply_to_id") or target.id
            path, more = "/pulls/{number}/comments/{first}/replies", {"first": first}
        else:
            path, more = "/issues/{number}/comments", {}
        return read(Posted, await self._post(repository, path, {"body": body}, number=number, **more))

    async def edit_comment(self, repository: Repository, target: Target, comment_id: int, body: str) -> Posted:
        """Replace the text of the bot's own comment that answers `target`."""
        edit = partial(self._api.patch, data={"body": body})
        return read(Posted, await self._below(repository, edit, _comment_path(target), id=comment_id))

    async def delete_comment(self, repository: Repository, target: Target, comment_id: int) -> None:
        """Delete the bot's own comment that answers `target`: https://docs.github.com/rest/issues/comments#delete-an-issue-comment"""
        await self._below(repository, self._api.delete, _comment_path(target), id=comment_id)

    async def minimize_comment(self, repository: Repository, target: Target, comment_id: int) -> None:
        """Fold the bot's own comment away as outdated: https://docs.github.com/graphql/reference/mutations#minimizecomment"""
        found = await self.get(repository, _comment_path(target), id=comment_id)
        await self._change(repository, "minimizeComment", subjectId=found["node_id"], classifier="OUTDATED")

    async def has_comment(self, repository: Repository, target: Target, comment_id: int) -> bool:
        """Return whether the bot's own comment that answers `target` is there."""
        return await self.get_if_there(repository, _comment_path(target), id=comment_id) is not None

    async def create_review(self, repository: Repository, number: int, body: str, review: OwnReview) -> Posted:
        """Submit a review that only comments; Refused with status 422 where a line is not in the diff.

        https://docs.github.com/rest/pulls/reviews#create-a-review-for-a-pull-request
        """
        remarks = []
        for one in review.remarks:
            begin = {"start_line": one.start_line, "start_side": one.side} if one.start_line is not None else {}
            remarks.append({"path": one.path, "line": one.line, "side": one.side, "body": one.body, **begin})
        of = {"commit_id": review.head} if review.head is not None else {}
        data = {"event": "COMMENT", "body": body, "comments": remarks, **of}
        return read(Posted, await self._post(repository, "/pulls/{number}/reviews", data, number=number))

    async def find_review(self, repository: Repository, number: int, marker: str) -> Posted | None:
        """Return the bot's own review whose text ends with `marker`, or None."""
        found = await self.get_all(repository, "/pulls/{number}/reviews{?per_page}", number=number)
        return await self._own(found, marker)

    async def resolve_thread(self, repository: Repository, thread: str) -> None:
        """Resolve a thread of inline comments by its id in GraphQL.

        https://docs.github.com/graphql/reference/mutations#resolvereviewthread
        """
        await self._change(repository, "resolveReviewThread", threadId=thread)

    async def find_comment(
        self, repository: Repository, number: int, target: Target, marker: str, since: datetime
    ) -> Posted | None:
        """Return the bot's own comment that ends with `marker` and was written after `since`, or None."""
        path = "/pulls/{number}/comments" if target.kind == "review-comment" else "/issues/{number}/comments"
        stamp = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = await self.get_all(repository, path + "{?per_page,since}", number=number, since=stamp)
        return await self._own(found, marker)

    async def _own(self, found: Iterable[Any], marker: str) -> Posted | None:
        """Return the first of these comments or reviews that is the bot's and ends with `marker`, or None."""
        own = await self.identity()
        for answer in found:
            author = answer.get("user")
            if author and author["id"] == own.id and (answer["body"] or "").rstrip().endswith(marker):
                return read(Posted, answer)
        return None

    async def webhooks(self, repository: Repository) -> list[Webhook]:
        """Return the repository's webhooks that lead to a bot, the newest first.

        Raises NotFound or Refused without the permission.
        """
        found = await self.get_all(repository, "/hooks{?per_page}")
        made = (
            read(Webhook, hook) for hook in found if urlsplit(hook["config"].get("url", "")).path.endswith(WEBHOOK_PATH)
        )
        return sorted(made, key=lambda hook: hook.at, reverse=True)

    async def logged_deliveries(self, hook: Hook | None, cursor: str | None) -> LogPage:
        """Return one page of what a repository's webhook, or the App's (None), delivered, or could not deliver.

        The first page without `cursor`, which is from the page before.
        https://docs.github.com/rest/repos/webhooks#list-deliveries-for-a-repository-webhook
        """
        path, size = "/deliveries{?per_page,cursor}", PER_PAGE if cursor else PER_FIRST_PAGE
        page = await self._of_hook(hook, self._api.page, path, per_page=size, cursor=cursor)
        cursors = parse_qs(urlsplit(page.following).query).get("cursor", [None])
        return LogPage([read(LoggedDelivery, one) for one in page.items], cursors[0], page.is_unchanged, page.left)

    async def logged_payload(self, hook: Hook | None, delivery: int) -> Any:
        """Return the payload of a delivery in GitHub's log.

        https://docs.github.com/rest/apps/webhooks#get-a-delivery-for-an-app-webhook
        """
        found = await self._of_hook(hook, self._api.getitem, "/deliveries/{delivery}", delivery=delivery)
        return found["request"]["payload"]

    async def _of_hook(self, hook: Hook | None, use: Call[T], path: str, **variables: Value) -> T:
        """Ask for what is below a repository's webhook, or the App's (None)."""
        if hook is None:
            return await self._api.as_app(lambda jwt: use(f"/app/hook{path}", variables, jwt=jwt))
        repository, hook_id = hook
        return await self._below(repository, use, f"/hooks/{{id}}{path}", id=hook_id, **variables)

    async def git_token(self, repository: Repository) -> str:
        """Return the token that git fetches and pushes with: for an App it gives access to this repository only."""
        return await self._tokens.of(repository, only_this_repository=True)

    def reject_token(self, token: str) -> None:
        """Forget a token that GitHub's git server refused, unless it is new: the next `git_token` is another one."""
        self._tokens.reject(token)

    async def _app_identity(self) -> answers.BotIdentity:
        """Return the App's bot account (https://docs.github.com/rest/apps/apps#get-the-authenticated-app)."""
        slug = (await self._of_app("/app"))["slug"]
        login = {"login": f"{slug}[bot]"}
        try:
            user = await self._api.getitem("/users/{login}", login)
        except GitHubError:
            # A private server wants a token, and a shared address may have used up its anonymous requests.
            # https://docs.github.com/rest/apps/apps#list-installations-for-the-authenticated-app
            installations = await self._of_app("/app/installations")
            if not installations:
                raise Unauthenticated("the GitHub App is not installed anywhere yet") from None
            token = await self._tokens.of_installation(installations[0]["id"])
            user = await self._api.getitem("/users/{login}", login, oauth_token=token)
        return answers.BotIdentity(user["login"], user["id"], slug)

    async def _of_app(self, path: str, **variables: Value) -> Any:
        """Return GitHub's answer to a GET that only the App itself may make."""
        return await self._api.as_app(lambda jwt: self._api.getitem(path, variables, jwt=jwt))

    async def get(self, repository: Repository, path: str, **variables: Value) -> Any:
        """Return GitHub's answer to a GET below the repository; `path` is a URI template (RFC 6570)."""
        return await self._below(repository, self._api.getitem, path, **variables)

    async def get_if_there(self, repository: Repository, path: str, **variables: Value) -> Any:
        """As `get`; None where there is nothing."""
        try:
            return await self.get(repository, path, **variables)
        except NotFound:
            return None

    async def get_all(
        self,
        repository: Repository,
        path: str,
        until: Callable[[Any], bool] | None = None,
        **variables: Value,
    ) -> list[Any]:
        """Return the items of every page of a list below the repository, or those before the first that is `until`."""
        use = partial(self._api.items, until=until)
        return await self._below(repository, use, path, per_page=PER_PAGE, **variables)

    async def _post(self, repository: Repository, path: str, data: Mapping[str, object], **variables: Value) -> Any:
        return await self._below(repository, partial(self._api.post, data=data), path, **variables)

    async def _below(self, repository: Repository, use: Call[T], path: str, **variables: Value) -> T:
        """Make a request below the repository, whatever it is called by now."""
        named = {"repository": repository.id, **variables}
        return await self._authorised(repository, lambda token: use(REPOSITORY + path, named, oauth_token=token))

    async def query(self, repository: Repository, document: str, **variables: Any) -> Any:
        """Return the data of a GraphQL query of which nothing may be missing.

        It is retried like a read: a mutation must be one that changes nothing the second time.
        """
        return (await self.ask(repository, document, None, **variables)).data

    async def ask(self, repository: Repository, document: str, need: Path | None, **variables: Any) -> Answer:
        """Return what GraphQL tells, at least this part; the repository's owner and name are among the variables.

        It finds no repository by number: a query of `repository` asks for its `databaseId` too. Raises NotFound where
        the name is another one's.
        """
        named = {"owner": repository.owner, "name": repository.name, **variables}
        answer = await self._authorised(repository, lambda token: self._api.query(document, named, need, token=token))
        if (found := answer.data.get("repository")) is not None and found["databaseId"] != repository.id:
            raise NotFound(f"{repository.full_name} is another repository by now")
        return answer

    async def _change(self, repository: Repository, name: str, **values: str) -> None:
        """Make one of https://docs.github.com/graphql/reference/mutations"""
        kind = f"{name[0].upper()}{name[1:]}Input!"
        document = f"mutation($input: {kind}) {{ {name}(input: $input) {{ clientMutationId }} }}"
        await self.query(repository, document, input=values)

    async def get_end_of_text(self, repository: Repository, path: str, most_bytes: int, **variables: Value) -> str:
        """Return the last `most_bytes` of a text below the repository, such as a log."""
        return await self._below(repository, partial(self._api.end_of_text, most_bytes=most_bytes), path, **variables)

    async def download(self, repository: Repository, url: str, most_bytes: int, uploads: Uploads) -> bytes:
        """Return an attachment of the repository's threads. Only the server itself gets a token, for this repository.

        It needs one where the repository is private. A link must not open what only the bot may read, so a personal
        token is not sent: it opens other repositories, too.
        """
        token = None
        if self.is_app and uploads.wants_token(url):
            token = await self._tokens.of(repository, only_this_repository=True)
        return await self._api.download(url, most_bytes, token=token, may_lead_to=uploads.may_lead_to)

    async def _authorised(self, repository: Repository, use: Callable[[str], Awaitable[T]]) -> T:
        """Call `use` with a token, again where GitHub refuses a new one: a request that is refused had no effect.

        So has one with a 401: a token that is rejected is replaced once.
        """
        token, tries, is_another = await self._tokens.of(repository), 0, False
        while True:
            try:
                answer = await use(token)
            except (Unauthenticated, NotFound, Refused) as refusal:
                if await self._may_pass(refusal, token, repository) and await self.wait_for_new(tries, token):
                    tries += 1
                elif isinstance(refusal, Unauthenticated) and not is_another and self._tokens.reject(token):
                    token, tries, is_another = await self._tokens.of(repository), 0, True
                else:
                    raise
            else:
                if self._tokens.is_new(token):
                    self._shown.add((token, repository.id))
                return answer

    async def _may_pass(self, refusal: GitHubError, token: str, repository: Repository) -> bool:
        """Return whether a token that GitHub has not replicated would be refused so."""
        if not self._tokens.is_new(token) or isinstance(refusal, Gone):
            return False
        if not isinstance(refusal, NotFound):
            return isinstance(refusal, Unauthenticated) or (isinstance(refusal, Refused) and refusal.status == 403)
        if (token, repository.id) in self._shown:
            return False
        try:  # what does not exist is not waited for
            await self._api.getitem(REPOSITORY, {"repository": repository.id}, oauth_token=token)
        except GitHubError:
            return True
        self._shown.add((token, repository.id))
        return False

    async def wait_for_new(self, tries: int, token: str | None = None) -> bool:
        """Return, after a pause, whether a refusal may have passed: the token, or without one any that is used, is new.

        `tries` is how often it was refused before.
        """
        if tries >= len(REFUSED_WAITS_SECONDS) or not self._tokens.is_new(token):
            return False
        await self._sleep(REFUSED_WAITS_SECONDS[tries])
        return True


def _comment_path(target: Target) -> str:
    """Return where the bot's comment that answers `target` is."""
    return "/pulls/comments/{id}" if target.kind == "review-comment" else "/issues/comments/{id}"


def repository_of(platform: str, found: Any, installation_id: int | None) -> Repository:
    """Read https://docs.github.com/rest/repos/repos#get-a-repository"""
    names = found["owner"]["login"], found["name"], found["default_branch"]
    return Repository(platform, found["id"], *names, installation_id)
