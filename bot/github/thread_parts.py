"""What GitHub tells of a thread, a function for each part. All raise GitHubError; a part that is gone raises NotFound.

GraphQL objects: https://docs.github.com/graphql/reference/objects#issue and #pullrequest.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from bot.github import answers
from bot.github.client import PER_PAGE, GitHub
from bot.github.errors import GitHubError, NotFound
from bot.github.thread import (
    ChangedFile,
    Commit,
    LinkedThread,
    PullRequest,
    ReviewThread,
    Text,
    WholeThread,
)
from bot.model import Actor, Repository, Target, TargetKind, Thread

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a request was made. `head_sha`: the head of a fork then; `bot_id`: whose pushes since then are no news.

    `writer_id`: somebody who is known to have write access.
    """

    asked_at: datetime
    bot_id: int
    head_sha: str | None = None
    writer_id: int | None = None


MOST_PAGES = 10
"""Pages of one part that are read, a hundred items each: the newest thousand comments."""
NOBODY = Actor("ghost", 0)

_AUTHOR = "author { __typename login ... on User { databaseId } ... on Bot { databaseId } }"
_TEXT = f"id fullDatabaseId {_AUTHOR} body createdAt lastEditedAt"
_RENAMES = """timelineItems(itemTypes: [RENAMED_TITLE_EVENT], last: 20) {
  nodes { ... on RenamedTitleEvent { createdAt previousTitle } }
}"""
_PAGE = "pageInfo { hasPreviousPage startCursor }"
_NEWEST_COMMENTS = f"comments(last: 100) {{ nodes {{ {_TEXT} }} {_PAGE} }}"
_ARGUMENTS = "$owner: String!, $name: String!, $number: Int!"

OVERVIEW = f"""
query({_ARGUMENTS}) {{
  repository(owner: $owner, name: $name) {{
    visibility
    issueOrPullRequest(number: $number) {{
      __typename
      ... on Issue {{
        title {_TEXT} {_RENAMES} labels(first: 50) {{ nodes {{ name }} }} milestone {{ title }} {_NEWEST_COMMENTS}
        closedByPullRequestsReferences(first: 20, includeClosedPrs: true) {{
          nodes {{ __typename number title state {_TEXT} repository {{ databaseId }} }}
        }}
      }}
      ... on PullRequest {{
        title {_TEXT} {_RENAMES} labels(first: 50) {{ nodes {{ name }} }} milestone {{ title }} {_NEWEST_COMMENTS}
        baseRefName headRefName headRefOid headRepository {{ databaseId }}
        commits(last: 100) {{ nodes {{ commit {{ oid messageHeadline committedDate }} }} }}
        closingIssuesReferences(first: 20) {{
          nodes {{ __typename number title state {_TEXT} repository {{ databaseId }} }}
        }}
      }}
    }}
  }}
}}
"""

# Teams can be asked for a review too, and older servers know no bots among the reviewers: hence the last fragment.
WHO_ASKED = """
query($ids: [ID!]!) {
  nodes(ids: $ids) {
    ... on Comment { lastEditedAt editor { ...account } }
    ... on Issue {
      timelineItems(last: 100, itemTypes: [LABELED_EVENT, ASSIGNED_EVENT]) {
        nodes { ...labeled ...assigned }
      }
    }
    ... on PullRequest {
      timelineItems(last: 100, itemTypes: [LABELED_EVENT, ASSIGNED_EVENT, REVIEW_REQUESTED_EVENT]) {
        nodes { ...labeled ...assigned ...requested }
      }
    }
  }
}
fragment labeled on LabeledEvent { id createdAt actor { ...account } label { name } }
fragment assigned on AssignedEvent { id createdAt actor { ...account } assignee { ...account } }
fragment requested on ReviewRequestedEvent {
  id createdAt actor { ...account } requestedReviewer { ...account }
}
fragment account on Actor { __typename login ... on User { databaseId } ... on Bot { databaseId } }
"""
RENDERED = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on Comment { bodyHTML } } }"


async def read_overview(
    github: GitHub, repository: Repository, number: int, moment: Moment
) -> tuple[WholeThread, str | None]:
    """Return the thread as of a moment with its newest comments, and where earlier ones begin; without the reviews,
    files and checks.
    """
    found = await github.query(repository, OVERVIEW, number=number)
    thread = found["repository"]["issueOrPullRequest"]
    if thread is None:
        raise NotFound("the thread is gone")
    pull, related = None, thread.get("closedByPullRequestsReferences")
    if thread["__typename"] == "PullRequest":
        related = thread["closingIssuesReferences"]
        found_commits = (one["commit"] for one in answers.nodes(thread["commits"]))
        commits = tuple(
            Commit(one["oid"], one["messageHeadline"], datetime.fromisoformat(one["committedDate"]))
            for one in found_commits
        )
        head = await _head_at(github, repository, thread, commits, moment)
        at = next((at for at, commit in enumerate(commits) if commit.sha == head), len(commits) - 1)
        pull = PullRequest(
            thread["baseRefName"],
            thread["headRefName"],
            head,
            pushed_since=head != thread["headRefOid"],
            commits=tuple(commit for commit in commits[: at + 1] if commit.committed_at <= moment.asked_at),
        )
    renames = answers.nodes(thread["timelineItems"])
    later = (one["previousTitle"] for one in renames if datetime.fromisoformat(one["createdAt"]) > moment.asked_at)
    whole = WholeThread(
        title=next(later, thread["title"]),
        is_public=found["repository"]["visibility"] == "PUBLIC",
        description=_text(thread),
        comments=tuple(map(_text, answers.nodes(thread["comments"]))),
        labels=tuple(label["name"] for label in answers.nodes(thread["labels"])),
        milestone=(thread["milestone"] or {}).get("title"),
        linked=tuple(
            _linked(one) for one in answers.nodes(related) if one["repository"]["databaseId"] == repository.id
        ),
        pull=pull,
    )
    return whole, _before(thread["comments"])


async def _head_at(
    github: GitHub, repository: Repository, thread: Any, commits: Sequence[Commit], moment: Moment
) -> str:
    """Return the head of the pull request at the moment. What the bot itself pushed since counts as well.

    https://docs.github.com/rest/repos/repos#list-repository-activities
    """
    head: str = thread["headRefOid"]
    if moment.head_sha is not None or (thread["headRepository"] or {}).get("databaseId") != repository.id:
        return moment.head_sha or head
    try:
        path, ref = "/activity{?ref,per_page}", f"refs/heads/{thread['headRefName']}"
        newest_first = await github.get(repository, path, ref=ref, per_page=PER_PAGE)
    except GitHubError:
        # An older Enterprise Server: the dates of the commits have to do.
        known = [commit.sha for commit in commits if commit.committed_at <= moment.asked_at]
        return known[-1] if known else head
    later = [one for one in reversed(newest_first) if datetime.fromisoformat(one["timestamp"]) > moment.asked_at]
    if not later:
        return head
    head = later[0]["before"]
    for push in later:
        if (push["actor"] or {}).get("id") != moment.bot_id:
            break
        head = push["after"]
    return head


@dataclass(frozen=True, slots=True)
class Given:
    """A label, an assignment or a request for a review, by GitHub's id of that event. `what`: the label's name in lower
    case, the assignee's id, or the reviewer's, negated.
    """

    id: str
    by: Actor
    what: str | int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class WhoAsked:
    """Who changed a text last, where it was edited, and what people gave its thread, oldest first."""

    edited_at: datetime | None
    editor: Actor
    gestures: tuple[Given, ...]

    def writer(self, author: Actor) -> Actor:
        """Return who wrote the words as they stand, which the `author` began."""
        return author if self.edited_at is None else self.editor

    def stands_for(self, given: Given) -> bool:
        """Return whether the gesture was made for the text as it stands: nobody else edited that later."""
        return self.edited_at is None or given.by.id == self.editor.id or given.at >= self.edited_at


@dataclass(frozen=True, slots=True)
class Shown:
    """A text that may address the bot, as GitHub shows it. `updated_at` is also that of other changes of a thread, and
    the time of its creation for a review, whose edits are not told.

    `thread` is told with the thread's own text. `code`, `review_id` and `approves` as in `Written`.
    """

    text: Text
    updated_at: datetime
    thread: Thread | None = None
    code: str = ""
    review_id: int | None = None
    approves: bool = False


_PLACES: dict[TargetKind, tuple[str, str]] = {
    "comment": ("/issues/comments/{id}", "issue_url"),
    "review-comment": ("/pulls/comments/{id}", "pull_request_url"),
    "review": ("/pulls/{number}/reviews/{id}", "pull_request_url"),
    "issue": ("/issues/{number}", "url"),
    "pull": ("/issues/{number}", "url"),
}


async def read_asked(github: GitHub, repository: Repository, number: int, target: Target) -> Shown | None:
    """Return the text that addressed the bot; None where this thread has no such text. Who edited it is not told.

    https://docs.github.com/rest/issues/comments#get-an-issue-comment and its siblings
    """
    path, place = _PLACES[target.kind]
    found = await github.get_if_there(repository, path, number=number, id=target.id)
    if found is None or found[place].rpartition("/")[2] != str(number):
        return None
    user = found["user"]
    author = Actor(user["login"], user["id"], user.get("type") == "Bot") if user else NOBODY
    created_at = datetime.fromisoformat(found.get("created_at") or found["submitted_at"])
    body = (found["body"] or "").replace("\0", "")
    line = found.get("line")
    is_review = target.kind == "review"
    return Shown(
        Text(author, body, created_at, id=target.id, node_id=found["node_id"]),
        created_at if is_review else datetime.fromisoformat(found["updated_at"]),
        answers.thread(found) if target.id is None else None,
        f"{found['path']}{f':{line}' if line else ''}\n\n{found['diff_hunk']}" if "diff_hunk" in found else "",
        target.id if is_review else found.get("pull_request_review_id"),
        approves=is_review and found["state"].casefold() == "approved",
    )


async def who_asked(github: GitHub, repository: Repository, node_ids: Sequence[str]) -> tuple[WhoAsked, ...]:
    """Return what is known of these texts, in their order."""
    found = await github.query(repository, WHO_ASKED, ids=list(node_ids))
    return tuple(map(_who_asked, found["nodes"]))


def _who_asked(node: Any) -> WhoAsked:
    edited_at = datetime.fromisoformat(node["lastEditedAt"]) if node["lastEditedAt"] else None
    gestures = tuple(
        Given(item["id"], _account(item["actor"]), _given(item), datetime.fromisoformat(item["createdAt"]))
        for item in answers.nodes(node.get("timelineItems"))
    )
    return WhoAsked(edited_at, _account(node["editor"]), gestures)


def _given(item: Any) -> str | int | None:
    """Return the label, the assignee or the reviewer of an item of a timeline, as in `Given`."""
    if "label" in item:
        return str(item["label"]["name"]).casefold()
    if "requestedReviewer" in item:
        return -_account(item["requestedReviewer"]).id or None
    return _account(item["assignee"]).id or None


def _account(node: Any) -> Actor:
    """Return the account of a GraphQL answer; one that is gone, or that has no id here, is nobody: it may not write."""
    return Actor(node["login"], node.get("databaseId") or 0, node["__typename"] == "Bot") if node else NOBODY


async def read_comments(github: GitHub, repository: Repository, number: int, before: str | None) -> tuple[Text, ...]:
    """Return the thousand comments of the thread before this cursor, oldest first; none without one."""
    if before is None:
        return ()
    pages = _pages(github, repository, number, "comments", _TEXT, before)
    return _oldest_first([[_text(one) for one in page] async for page in pages])


async def read_reviews(github: GitHub, repository: Repository, number: int) -> tuple[Text, ...]:
    """Return the texts of the pull request's reviews, oldest first, without the reviews that have no text."""
    pages = _pages(github, repository, number, "reviews", _TEXT)
    return _oldest_first([[_text(one) for one in page if one["body"]] async for page in pages])


async def read_review_threads(
    github: GitHub, repository: Repository, number: int, bot_id: int
) -> tuple[ReviewThread, ...]:
    """Return the threads of inline comments, oldest first; of the resolved ones those that the bot began."""
    nodes = f"id isResolved isOutdated path line comments(first: 50) {{ nodes {{ {_TEXT} diffHunk }} }}"
    pages = _pages(github, repository, number, "reviewThreads", nodes)
    threads = _oldest_first([[_review_thread(one) for one in page] async for page in pages])
    return tuple(
        one for one in threads if not one.is_resolved or (one.comments and one.comments[0].author.id == bot_id)
    )


async def read_remarks(github: GitHub, repository: Repository, number: int) -> tuple[ReviewThread, ...]:
    """Return the threads of inline comments as REST tells them: without their ids, and whether they are resolved.

    https://docs.github.com/rest/pulls/comments#list-review-comments-on-a-pull-request
    """
    threads: dict[int, ReviewThread] = {}
    for one in await github.get_all(repository, "/pulls/{number}/comments{?per_page}", number=number):
        user, first = one["user"], one.get("in_reply_to_id") or one["id"]
        author = Actor(user["login"], user["id"], user.get("type") == "Bot") if user else NOBODY
        text = Text(author, one["body"] or "", datetime.fromisoformat(one["created_at"]), id=one["id"])
        line = one.get("line")
        begun = ReviewThread(one["path"], line, one.get("diff_hunk", ""), (), is_outdated=line is None)
        thread = threads.setdefault(first, begun)
        threads[first] = replace(thread, comments=(*thread.comments, text))
    return tuple(threads.values())


async def read_rendered(github: GitHub, repository: Repository, node_ids: Sequence[str]) -> tuple[str, ...]:
    """Return GitHub's HTML of these texts, in which the addresses of attachments hold for minutes without a session."""
    found = await github.query(repository, RENDERED, ids=list(node_ids))
    return tuple(node["bodyHTML"] for node in found["nodes"] if node)


async def read_files(github: GitHub, repository: Repository, number: int, pull: PullRequest) -> tuple[ChangedFile, ...]:
    """https://docs.github.com/rest/pulls/pulls#list-pull-requests-files; of an older head,
    https://docs.github.com/rest/commits/commits#compare-two-commits
    """
    if pull.pushed_since:
        span = f"{pull.base}...{pull.head_sha}"
        found = (await github.get(repository, "/compare/{span}{?per_page}", span=span, per_page=1))["files"]
    else:
        found = await github.get_all(repository, "/pulls/{number}/files{?per_page}", number=number)
    return tuple(
        ChangedFile(one["filename"], one["status"], one["additions"], one["deletions"], one.get("patch"))
        for one in found
    )


async def _pages(
    github: GitHub, repository: Repository, number: int, part: str, nodes: str, before: str | None = None
) -> AsyncIterator[list[Any]]:
    """Yield the pages of one connection with these fields, the newest first."""
    page = f"{part}(last: 100, before: $before) {{ nodes {{ {nodes} }} {_PAGE} }}"
    kind = "pullRequest"
    if part == "comments":
        kind, page = "issueOrPullRequest", f"... on Issue {{ {page} }} ... on PullRequest {{ {page} }}"
    thread = f"repository(owner: $owner, name: $name) {{ {kind}(number: $number) {{ {page} }} }}"
    document = f"query({_ARGUMENTS}, $before: String) {{ {thread} }}"
    for _ in range(MOST_PAGES):
        found = await github.query(repository, document, number=number, before=before)
        found_part = (found["repository"][kind] or {}).get(part)
        if found_part is None:
            raise NotFound("the thread is gone")
        yield answers.nodes(found_part)
        if (before := _before(found_part)) is None:
            return


def _before(connection: Any) -> str | None:
    """Return the cursor of the page before this one."""
    info = connection["pageInfo"]
    return info["startCursor"] if info["hasPreviousPage"] else None


def _oldest_first(pages: list[list[T]]) -> tuple[T, ...]:
    return tuple(one for page in reversed(pages) for one in page)


def _linked(node: Any) -> LinkedThread:
    kind: Literal["issue", "pull"] = "issue" if node["__typename"] == "Issue" else "pull"
    return LinkedThread(kind, node["number"], node["title"], node["state"].lower(), _text(node))


def _review_thread(node: Any) -> ReviewThread:
    comments = answers.nodes(node["comments"])
    hunk = comments[0]["diffHunk"] if comments else ""
    state = {"is_resolved": node["isResolved"], "is_outdated": node["isOutdated"]}
    return ReviewThread(node["path"], node["line"], hunk, tuple(map(_text, comments)), node["id"], **state)


def _text(node: Any) -> Text:
    edited = node["lastEditedAt"]
    return Text(
        _account(node["author"]),
        node["body"] or "",
        datetime.fromisoformat(node["createdAt"]),
        datetime.fromisoformat(edited) if edited else None,
        int(node["fullDatabaseId"]) if node["fullDatabaseId"] else None,
        node["id"],
    )
