"""The part of GitHub's GraphQL schema that the bot uses, with GitHub's names, limits and error types."""

import base64
import binascii
import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import orjson
from graphql import (
    DocumentNode,
    ExecutionResult,
    GraphQLError,
    GraphQLSchema,
    build_schema,
    execute,
    parse,
    validate,
)
from starlette.requests import Request
from starlette.responses import Response

from bot.simulated.github.auth import Caller, authenticate
from bot.simulated.github.errors import RefusedError
from bot.simulated.github.model import (
    Comment,
    Issue,
    Label,
    Pull,
    ReactionContent,
    Repository,
    Review,
    ReviewComment,
    Revision,
    User,
    node_id,
    number_in,
)
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.rest_call import answer, refusal
from bot.simulated.github.rest_reviews import line_now
from bot.simulated.github.uploads import rendered

MAX_PAGE = 100
_REACTIONS: dict[str, ReactionContent] = {"EYES": "eyes", "CONFUSED": "confused", "HEART": "heart", "ROCKET": "rocket"}

SCHEMA = """
type Query { viewer: User!  repository(owner: String!, name: String!): Repository  node(id: ID!): Node
  nodes(ids: [ID!]!): [Node]! }
type Mutation { addReaction(input: AddReactionInput!): AddReactionPayload
  minimizeComment(input: MinimizeCommentInput!): MinimizeCommentPayload
  resolveReviewThread(input: ResolveReviewThreadInput!): ResolveReviewThreadPayload }
input ResolveReviewThreadInput { threadId: ID!  clientMutationId: String }
type ResolveReviewThreadPayload { clientMutationId: String  thread: PullRequestReviewThread }
enum ReactionContent { THUMBS_UP THUMBS_DOWN LAUGH CONFUSED HEART HOORAY ROCKET EYES }
enum ReportedContentClassifiers { ABUSE DUPLICATE OFF_TOPIC OUTDATED RESOLVED SPAM }
input AddReactionInput { subjectId: ID!  content: ReactionContent!  clientMutationId: String }
type AddReactionPayload { clientMutationId: String }
input MinimizeCommentInput { subjectId: ID!  classifier: ReportedContentClassifiers!  clientMutationId: String }
type MinimizeCommentPayload { clientMutationId: String }
interface Node { id: ID! }
interface Comment {
  body: String!  bodyHTML: String!  lastEditedAt: DateTime  editor: Actor
  userContentEdits(first: Int): UserContentEditConnection
}
type UserContentEdit implements Node { id: ID!  editedAt: DateTime!  editor: Actor  diff: String }
type UserContentEditConnection { nodes: [UserContentEdit]  pageInfo: PageInfo!  totalCount: Int! }
interface Actor { login: String! }
type User implements Actor & Node { id: ID!  login: String!  databaseId: Int }
type Bot implements Actor & Node { id: ID!  login: String!  databaseId: Int }
type Repository implements Node {
  id: ID!  databaseId: Int  name: String!  nameWithOwner: String!  isFork: Boolean!  isPrivate: Boolean!
  visibility: RepositoryVisibility!
  issueOrPullRequest(number: Int!): IssueOrPullRequest
  issue(number: Int!): Issue
  pullRequest(number: Int!): PullRequest
}
enum RepositoryVisibility { PRIVATE PUBLIC INTERNAL }
scalar DateTime
enum IssueState { OPEN CLOSED }
enum PullRequestState { OPEN CLOSED MERGED }
enum MergeableState { CONFLICTING MERGEABLE UNKNOWN }
type Issue implements Node & Comment {
  id: ID!  fullDatabaseId: String  number: Int!  title: String!  body: String!  bodyHTML: String!  state: IssueState!
  author: Actor  repository: Repository!  createdAt: DateTime!  lastEditedAt: DateTime  editor: Actor
  userContentEdits(first: Int): UserContentEditConnection
  labels(first: Int, after: String): LabelConnection  milestone: Milestone
  timelineItems(itemTypes: [IssueTimelineItemsItemType!], last: Int): IssueTimelineItemsConnection!
  comments(last: Int, before: String): IssueCommentConnection!
  closedByPullRequestsReferences(first: Int, after: String, includeClosedPrs: Boolean): PullRequestConnection
}
type PullRequest implements Node & Comment {
  id: ID!  fullDatabaseId: String  number: Int!  title: String!  body: String!  bodyHTML: String!
  state: PullRequestState!  mergeable: MergeableState!
  merged: Boolean!  isDraft: Boolean!  headRefName: String!  headRefOid: ID!  baseRefName: String!
  baseRefOid: ID!  headRepository: Repository
  author: Actor  repository: Repository!  createdAt: DateTime!  lastEditedAt: DateTime  editor: Actor
  userContentEdits(first: Int): UserContentEditConnection
  labels(first: Int, after: String): LabelConnection  milestone: Milestone
  timelineItems(itemTypes: [PullRequestTimelineItemsItemType!], last: Int):
    PullRequestTimelineItemsConnection!
  comments(last: Int, before: String): IssueCommentConnection!
  commits(last: Int, before: String): PullRequestCommitConnection!
  reviews(last: Int, before: String): PullRequestReviewConnection
  reviewThreads(last: Int, before: String): PullRequestReviewThreadConnection!
  closingIssuesReferences(first: Int, after: String): IssueConnection
}
type IssueConnection { nodes: [Issue]  pageInfo: PageInfo!  totalCount: Int! }
type PageInfo { hasNextPage: Boolean!  endCursor: String  hasPreviousPage: Boolean!  startCursor: String }
union IssueOrPullRequest = Issue | PullRequest
enum IssueTimelineItemsItemType { RENAMED_TITLE_EVENT LABELED_EVENT ASSIGNED_EVENT }
enum PullRequestTimelineItemsItemType { RENAMED_TITLE_EVENT LABELED_EVENT ASSIGNED_EVENT REVIEW_REQUESTED_EVENT }
type RenamedTitleEvent { createdAt: DateTime!  previousTitle: String!  currentTitle: String! }
type LabeledEvent implements Node { id: ID!  createdAt: DateTime!  actor: Actor  label: Label! }
union Assignee = User | Bot
type AssignedEvent implements Node { id: ID!  createdAt: DateTime!  actor: Actor  assignee: Assignee }
union RequestedReviewer = User | Bot
type ReviewRequestedEvent implements Node {
  id: ID!  createdAt: DateTime!  actor: Actor  requestedReviewer: RequestedReviewer
}
union TimelineItem = RenamedTitleEvent | LabeledEvent | AssignedEvent
union PullTimelineItem = RenamedTitleEvent | LabeledEvent | AssignedEvent | ReviewRequestedEvent
type IssueTimelineItemsConnection { nodes: [TimelineItem]  pageInfo: PageInfo! }
type PullRequestTimelineItemsConnection { nodes: [PullTimelineItem]  pageInfo: PageInfo! }
type Label { name: String! }
type LabelConnection { nodes: [Label]  pageInfo: PageInfo!  totalCount: Int! }
type Milestone { title: String! }
type IssueComment implements Node & Comment {
  id: ID!  fullDatabaseId: String  body: String!  bodyHTML: String!  isMinimized: Boolean!
  author: Actor  createdAt: DateTime!  lastEditedAt: DateTime  editor: Actor
  userContentEdits(first: Int): UserContentEditConnection
}
type IssueCommentConnection { nodes: [IssueComment]  pageInfo: PageInfo!  totalCount: Int! }
type PullRequestReviewComment implements Node & Comment {
  id: ID!  fullDatabaseId: String  body: String!  bodyHTML: String!  isMinimized: Boolean!
  author: Actor  createdAt: DateTime!  lastEditedAt: DateTime  editor: Actor
  userContentEdits(first: Int): UserContentEditConnection
  diffHunk: String!
}
type PullRequestReviewCommentConnection { nodes: [PullRequestReviewComment]  pageInfo: PageInfo!  totalCount: Int! }
enum PullRequestReviewState { APPROVED CHANGES_REQUESTED COMMENTED DISMISSED PENDING }
type PullRequestReview implements Node & Comment {
  id: ID!  state: PullRequestReviewState!  isMinimized: Boolean!
  fullDatabaseId: String  body: String!  bodyHTML: String!  author: Actor  createdAt: DateTime!
  submittedAt: DateTime  lastEditedAt: DateTime  editor: Actor
  userContentEdits(first: Int): UserContentEditConnection
}
type PullRequestReviewConnection { nodes: [PullRequestReview]  pageInfo: PageInfo!  totalCount: Int! }
type PullRequestReviewThread implements Node {
  id: ID!  isResolved: Boolean!  isOutdated: Boolean!  path: String!  line: Int  originalLine: Int
  comments(first: Int, after: String): PullRequestReviewCommentConnection!
}
type PullRequestReviewThreadConnection { nodes: [PullRequestReviewThread]  pageInfo: PageInfo!  totalCount: Int! }
type Commit { oid: ID!  messageHeadline: String!  committedDate: DateTime! }
type PullRequestCommit { commit: Commit! }
type PullRequestCommitConnection { nodes: [PullRequestCommit]  pageInfo: PageInfo!  totalCount: Int! }
type PullRequestConnection { nodes: [PullRequest]  pageInfo: PageInfo!  totalCount: Int! }
"""

Node = dict[str, Any]
T = TypeVar("T")


@functools.cache
def _schema() -> GraphQLSchema:
    """Return the schema, which is parsed once for all servers of a process."""
    return build_schema(SCHEMA)


@functools.lru_cache(maxsize=100)
def _document(query: str) -> DocumentNode | list[GraphQLError]:
    """Return the query, or its errors. It is checked once: a check takes longer than the answer."""
    try:
        document = parse(query)
    except GraphQLError as error:
        return [error]
    return validate(_schema(), document) or document


class GraphQL:
    """The GraphQL endpoint; each caller sees only what they may read."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts

    async def endpoint(self, request: Request) -> Response:
        """Handle POST /graphql; errors of the query come with status 200."""
        try:
            caller = authenticate(self._acts.world, request.headers.get("authorization"))
            if caller.user is None:
                raise RefusedError(401, "This endpoint requires you to be authenticated.")
            body = orjson.loads(await request.body())
            query, variables = str(body["query"]), body.get("variables")
        except RefusedError as refused:
            return refusal(refused)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return refusal(RefusedError(400, "Problems parsing JSON"))
        root = _Resolvers(self._acts, caller, caller.user).root()
        document = _document(query)
        if isinstance(document, list):
            result = ExecutionResult(None, document)
        else:
            executed = execute(_schema(), document, root, variable_values=variables)
            result = executed if isinstance(executed, ExecutionResult) else await executed
        return answer(_in_github_form(result.formatted))


class _Resolvers:
    """Objects of the schema as dictionaries; a callable is a field that is resolved on demand."""

    def __init__(self, acts: Acts, caller: Caller, viewer: User) -> None:
        self._acts = acts
        self._caller = caller
        self._viewer = viewer

    def root(self) -> Node:
        return {
            "viewer": self._user(self._viewer),
            "repository": lambda _info, owner, name: self._repository_named(f"{owner}/{name}"),
            "nodes": lambda _info, ids: [self._node(wanted) for wanted in ids],
            "node": lambda _info, id: self._node(id),  # noqa: A006
            "addReaction": lambda _info, input: self._add_reaction(**input),  # noqa: A006
            "minimizeComment": lambda _info, input: self._minimize(**input),  # noqa: A006
            "resolveReviewThread": lambda _info, input: self._resolve(**input),  # noqa: A006
        }

    def _add_reaction(self, subjectId: str, content: str, **_: Any) -> Node:  # noqa: N803 - GitHub's name
        self._acts.react(self._viewer, self._subject(subjectId), _REACTIONS[content])
        return {}

    def _minimize(self, subjectId: str, classifier: str, **_: Any) -> Node:  # noqa: N803 - GitHub's name
        comment = self._subject(subjectId)
        if isinstance(comment, Issue):
            raise _not_found(f"Could not resolve to a node with the global id of '{subjectId}'")
        thread = comment.thread if isinstance(comment, Comment) else comment.pull
        if not thread.repository.may(self._viewer, "write"):
            raise _error("FORBIDDEN", "Resource not accessible by personal access token")
        comment.minimized_as = classifier
        self._acts.world.changes.notify()
        return {}

    def _resolve(self, threadId: str, **_: Any) -> Node:  # noqa: N803 - GitHub's name
        pulls = [pull for one in self._acts.world.repositories.values() for pull in one.pulls]
        roots = (root for pull in pulls for root in _roots(pull) if node_id("PRRT", root.id) == threadId)
        root = next(roots, None)
        if root is None or not root.thread.repository.may(self._viewer, "read"):
            raise _not_found(f"Could not resolve to a node with the global id of '{threadId}'")
        if not root.thread.repository.may(self._viewer, "write"):
            raise _error("FORBIDDEN", "Resource not accessible by personal access token")
        root.resolved = True
        self._acts.world.changes.notify()
        return {"thread": self._review_thread(root)}

    def _subject(self, wanted: str) -> Issue | Comment | Review:
        """Return what carries reactions and has this id."""
        for repository in self._acts.world.repositories.values():
            if repository.may(self._viewer, "read"):
                things: list[Issue | Comment | Review] = [*repository.threads.values(), *repository.comments.values()]
                for pull in repository.pulls:
                    things += [*pull.reviews, *pull.review_comments]
                if (found := next((one for one in things if one.node_id == wanted), None)) is not None:
                    return found
        raise _not_found(f"Could not resolve to a node with the global id of '{wanted}'")

    def _repository_named(self, full_name: str) -> Node:
        repository = self._acts.world.repository(full_name)
        if repository is None or not repository.may(self._viewer, "read"):
            raise _not_found(f"Could not resolve to a Repository with the name '{full_name}'.")
        return self._repository(repository)

    def _node(self, wanted: str) -> Node:
        for repository in self._acts.world.repositories.values():
            if repository.may(self._viewer, "read") and (found := self._node_in(repository, wanted)) is not None:
                return found
        raise _not_found(f"Could not resolve to a node with the global id of '{wanted}'")

    def _node_in(self, repository: Repository, wanted: str) -> Node | None:
        """Return the node of this id in the repository; only that one is rendered, for there may be thousands."""
        if repository.node_id == wanted:
            return self._repository(repository)
        comment = repository.comments.get(number_in(wanted) or 0)
        if comment is not None and comment.node_id == wanted:
            return self._comment(comment)
        for thread in repository.threads.values():
            if thread.node_id == wanted:
                return self._pull(thread) if isinstance(thread, Pull) else self._issue(thread)
            if isinstance(thread, Pull):
                for review in thread.reviews:
                    if review.node_id == wanted:
                        return self._review(review)
                for inline in thread.review_comments:
                    if inline.node_id == wanted:
                        return self._comment(inline)
                for root in _roots(thread):
                    if node_id("PRRT", root.id) == wanted:
                        return self._review_thread(root)
        return None

    def _user(self, user: User) -> Node:
        kind = "Bot" if user.type == "Bot" else "User"
        return {"__typename": kind, "id": user.node_id, "login": user.login, "databaseId": user.id}

    def _repository(self, repository: Repository) -> Node:
        return {
            "__typename": "Repository",
            "id": repository.node_id,
            "databaseId": repository.id,
            "name": repository.name,
            "nameWithOwner": repository.full_name,
            "isFork": repository.parent is not None,
            "isPrivate": repository.private,
            "visibility": "PRIVATE" if repository.private else "PUBLIC",
            "issueOrPullRequest": lambda _info, number: self._any_thread(repository, number),
            "issue": lambda _info, number: self._numbered(repository, number, "Issue", self._issue),
            "pullRequest": lambda _info, number: self._numbered(repository, number, "PullRequest", self._pull),
        }

    def _numbered(self, repository: Repository, number: int, kind: str, render: Callable[[Any], Node]) -> Node:
        thread = repository.threads.get(number)
        if thread is None or isinstance(thread, Pull) != (kind == "PullRequest"):
            raise _not_found(
                f"Could not resolve to {'a' if kind[0] == 'P' else 'an'} {kind} with the number of {number}."
            )
        return render(thread)

    def _any_thread(self, repository: Repository, number: int) -> Node:
        thread = repository.threads.get(number)
        if thread is None:
            raise _not_found(f"Could not resolve to an issue or pull request with the number of {number}.")
        return self._pull(thread) if isinstance(thread, Pull) else self._issue(thread)

    def _issue(self, issue: Issue) -> Node:
        return self._thread(issue) | {
            "__typename": "Issue",
            "state": issue.state.upper(),
            "closedByPullRequestsReferences": lambda _info, **page: self._closed_by(issue, **page),
        }

    def _pull(self, pull: Pull) -> Node:
        return self._thread(pull) | {
            "__typename": "PullRequest",
            "state": "MERGED" if pull.merged else pull.state.upper(),
            "merged": pull.merged,
            "mergeable": lambda _info: self._acts.mergeable(pull),
            "isDraft": pull.draft,
            "headRefName": pull.head_ref,
            "headRefOid": pull.head_sha,
            "baseRefName": pull.base_ref,
            "baseRefOid": pull.base_sha,
            "headRepository": lambda _info: self._repository(pull.head_repository),
            "closingIssuesReferences": lambda _info, **page: self._closing_issues(pull, **page),
            "commits": lambda _info, **page: self._commits(pull, **page),
            "reviews": lambda _info, **page: _newest(pull.reviews, self._review, **page),
            "reviewThreads": lambda _info, **page: _newest(_roots(pull), self._review_thread, **page),
        }

    def _thread(self, thread: Issue) -> Node:
        return {
            "id": thread.node_id,
            "fullDatabaseId": str(thread.id),
            "number": thread.number,
            "title": thread.title,
            "body": thread.body or "",
            "bodyHTML": lambda _info: rendered(self._acts.world, thread.body or ""),
            "author": self._user(thread.author),
            "timelineItems": lambda _info, **page: self._timeline(thread, **page),
            "createdAt": thread.created_at.isoformat(timespec="seconds"),
            **self._edits(thread.id, thread.revisions),
            "labels": lambda _info, **page: _first(thread.labels, lambda label: {"name": label.name}, **page),
            "milestone": {"title": thread.milestone} if thread.milestone else None,
            "comments": lambda _info, **page: _newest(thread.comments, self._comment, **page),
            "repository": lambda _info: self._repository(thread.repository),
        }

    def _timeline(self, thread: Issue, last: int, **query: Any) -> Node:
        """The renames, labels and assignments of a thread, the newest `last`."""
        items: list[tuple[datetime, str, Node]] = []
        for at, before in thread.renames:
            title = {"previousTitle": before, "currentTitle": thread.title}
            items.append((at, "RENAMED_TITLE_EVENT", {"__typename": "RenamedTitleEvent", **title}))
        for gesture in thread.gestures:
            about = {"id": node_id("LE", gesture.id), "actor": self._user(gesture.actor)}
            if isinstance(gesture.given, Label):
                about |= {"__typename": "LabeledEvent", "label": {"name": gesture.given.name}}
                items.append((gesture.at, "LABELED_EVENT", about))
            elif gesture.is_reviewer:
                about |= {"__typename": "ReviewRequestedEvent", "requestedReviewer": self._user(gesture.given)}
                items.append((gesture.at, "REVIEW_REQUESTED_EVENT", about))
            else:
                about |= {"__typename": "AssignedEvent", "assignee": self._user(gesture.given)}
                items.append((gesture.at, "ASSIGNED_EVENT", about))
        wanted = [
            {**item, "createdAt": at.isoformat(timespec="seconds")}
            for at, kind, item in sorted(items, key=lambda one: one[0])
            if kind in query["itemTypes"]
        ]
        return _newest(wanted, dict, last)

    def _comment(self, comment: Comment) -> Node:
        return {
            "__typename": "PullRequestReviewComment" if isinstance(comment, ReviewComment) else "IssueComment",
            "id": comment.node_id,
            "fullDatabaseId": str(comment.id),
            "body": comment.body,
            "bodyHTML": lambda _info: rendered(self._acts.world, comment.body),
            "isMinimized": comment.minimized_as is not None,
            "author": self._user(comment.author),
            "createdAt": comment.created_at.isoformat(timespec="seconds"),
            **self._edits(comment.id, comment.revisions),
            "diffHunk": self._acts.payloads.diff_hunk(comment) if isinstance(comment, ReviewComment) else None,
        }

    def _edits(self, of: int, revisions: list[Revision]) -> Node:
        last = revisions[-1] if revisions else None

        def edit(numbered: tuple[int, Revision]) -> Node:
            number, one = numbered
            at, identity = one.at.isoformat(timespec="seconds"), node_id("UCE", of * 1000 + number)
            return {"id": identity, "editedAt": at, "editor": self._user(one.editor), "diff": one.body}

        return {
            "userContentEdits": lambda _info, **page: _first(list(enumerate(revisions))[::-1], edit, **page),
            "lastEditedAt": last and last.at.isoformat(timespec="seconds"),
            "editor": last and self._user(last.editor),
        }

    def _review(self, review: Review) -> Node:
        return {
            "__typename": "PullRequestReview",
            "id": review.node_id,
            "state": review.state.upper(),
            "fullDatabaseId": str(review.id),
            "body": review.body or "",
            "bodyHTML": lambda _info: rendered(self._acts.world, review.body or ""),
            "isMinimized": review.minimized_as is not None,
            "author": self._user(review.author),
            "createdAt": review.submitted_at.isoformat(timespec="seconds"),
            "submittedAt": review.submitted_at.isoformat(timespec="seconds"),
            **self._edits(review.id, []),
        }

    def _review_thread(self, root: ReviewComment) -> Node:
        comments = [root, *(one for one in root.review.pull.review_comments if one.in_reply_to is root)]

        async def line(_info: Any) -> int | None:
            return await line_now(root.review.pull, root)

        async def is_outdated(_info: Any) -> bool:
            return await line_now(root.review.pull, root) is None

        return {
            "__typename": "PullRequestReviewThread",
            "id": node_id("PRRT", root.id),
            "isResolved": root.resolved,
            "isOutdated": is_outdated,
            "path": root.path,
            "line": line,
            "originalLine": root.line,
            "comments": lambda _info, **page: _first(comments, self._comment, **page),
        }

    async def _commits(self, pull: Pull, last: int, before: str | None = None) -> Node:
        git = pull.repository.git
        rows = await git.run("log", "--reverse", "--format=%H %cI %s", f"{pull.base_sha}..refs/pull/{pull.number}/head")

        def render(row: str) -> Node:
            sha, date, subject = row.split(" ", 2)
            return {"commit": {"oid": sha, "committedDate": date, "messageHeadline": subject}}

        return _newest(rows.splitlines(), render, last, before)

    def _closed_by(self, issue: Issue, first: int, after: str | None = None, **_: Any) -> Node:
        pulls = [pull for pull in issue.repository.pulls if issue in self._acts.closing_issues(pull)]
        return _first(pulls, self._pull, first, after)

    def _closing_issues(self, pull: Pull, first: int | None = None, after: str | None = None) -> Node:
        issues = self._acts.closing_issues(pull) if pull.closing_references_indexed else []
        visible = [issue for issue in issues if issue.repository.may(self._viewer, "read")]
        return _first(visible, self._issue, first, after)


def _first(items: Sequence[T], render: Callable[[T], Node], first: int | None = None, after: str | None = None) -> Node:
    """The page of a connection that begins after a cursor."""
    if first is None:
        raise _error("MISSING_PAGINATION_BOUNDARIES", "You must provide a `first` or `last` value.")
    if not 0 <= first <= MAX_PAGE:
        raise _error("EXCESSIVE_PAGINATION", f"`first` must be within 0 and {MAX_PAGE} records.")
    start = _position(after)
    page = items[start : start + first]
    end = start + len(page)
    info = {"hasNextPage": end < len(items), "endCursor": _cursor(end) if page else None}
    info |= {"hasPreviousPage": start > 0, "startCursor": _cursor(start)}
    return {"nodes": [render(item) for item in page], "pageInfo": info, "totalCount": len(items)}


def _newest(
    items: Sequence[T], render: Callable[[T], Node], last: int | None = None, before: str | None = None
) -> Node:
    """The page of a connection that ends before a cursor."""
    if last is None or not 0 <= last <= MAX_PAGE:
        raise _error("MISSING_PAGINATION_BOUNDARIES", "You must provide a `last` value of at most 100.")
    end = len(items) if before is None else _position(before)
    start = max(0, end - last)
    info = {"hasPreviousPage": start > 0, "startCursor": _cursor(start), "hasNextPage": end < len(items)}
    nodes = [render(item) for item in items[start:end]]
    return {"nodes": nodes, "pageInfo": info | {"endCursor": _cursor(end)}, "totalCount": len(items)}


def _roots(pull: Pull) -> list[ReviewComment]:
    """The first comments of a pull request's review threads."""
    return [comment for comment in pull.review_comments if comment.in_reply_to is None]


def _cursor(position: int) -> str:
    return base64.b64encode(f"cursor:v2:{position}".encode()).decode()


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    try:
        return int(base64.b64decode(cursor, validate=True).decode().removeprefix("cursor:v2:"))
    except (binascii.Error, ValueError) as error:
        raise _error("INVALID_CURSOR_ARGUMENTS", f"`{cursor}` does not appear to be a valid cursor.") from error


def _not_found(message: str) -> GraphQLError:
    return _error("NOT_FOUND", message)


def _error(kind: str, message: str) -> GraphQLError:
    return GraphQLError(message, extensions={"type": kind})


def _in_github_form(result: Any) -> dict[str, Any]:
    """Put an error's type beside its message, as GitHub does, and not into `extensions`."""
    answered = dict(result)
    for error in answered.get("errors", []):
        if kind := error.get("extensions", {}).pop("type", None):
            error["type"] = kind
        if not error.get("extensions"):
            error.pop("extensions", None)
    return answered
