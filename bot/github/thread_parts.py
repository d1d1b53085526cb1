"""What GitHub tells of a thread, a function for each part. All raise GitHubError; a part that is gone raises NotFound.

GraphQL objects: https://docs.github.com/graphql/reference/objects#issue and #pullrequest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from bot.github import answers
from bot.github.client import PER_PAGE, GitHub
from bot.github.errors import GitHubError, Transient
from bot.github.graphql import Answer
from bot.github.thread import (
    ChangedFile,
    Commit,
    Gaps,
    LinkedThread,
    PullRequest,
    ReviewThread,
    Text,
    WholeThread,
)
from bot.model import Actor, Repository, Target, TargetKind, Thread


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
MOST_FILES = 3000
"""What GitHub lists of a pull request's files: https://docs.github.com/rest/pulls/pulls#list-pull-requests-files"""
MOST_COMPARED = 300
"""What it lists of a comparison's: https://docs.github.com/rest/commits/commits#compare-two-commits"""
NOBODY = Actor("ghost", 0)

_AUTHOR = "author { __typename login ... on User { databaseId } ... on Bot { databaseId } }"
_TEXT = f"id fullDatabaseId {_AUTHOR} body createdAt lastEditedAt"
_COMMENT = f"{_TEXT} isMinimized"
_REMARK = f"{_COMMENT} diffHunk"
_COMMITTED = "commit { oid messageHeadline committedDate }"
_PAGE = "totalCount pageInfo { hasPreviousPage startCursor }"
_NEXT = "totalCount pageInfo { hasNextPage endCursor }"
_RENAMES = """timelineItems(itemTypes: [RENAMED_TITLE_EVENT], last: 100) {
  nodes { ... on RenamedTitleEvent { createdAt previousTitle } } pageInfo { hasPreviousPage }
}"""
# An issue has at most a hundred labels.
_SHARED = f"""
  title {_TEXT} {_RENAMES} labels(first: 100) {{ nodes {{ name }} totalCount }} milestone {{ title }}
  comments(last: 100) {{ nodes {{ {_COMMENT} }} {_PAGE} }}
"""
_LINKED = f"nodes {{ __typename number title state {_TEXT} repository {{ databaseId }} }} totalCount"
_ARGUMENTS = "$owner: String!, $name: String!, $number: Int!"

OVERVIEW = f"""
query({_ARGUMENTS}) {{
  repository(owner: $owner, name: $name) {{
    databaseId visibility
    issueOrPullRequest(number: $number) {{
      __typename
      ... on Issue {{
        {_SHARED}
        closedByPullRequestsReferences(first: 20, includeClosedPrs: true) {{ {_LINKED} }}
      }}
      ... on PullRequest {{
        {_SHARED}
        baseRefName headRefName headRefOid headRepository {{ databaseId }}
        commits(last: 100) {{ nodes {{ {_COMMITTED} }} {_PAGE} }}
        closingIssuesReferences(first: 20) {{ {_LINKED} }}
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
# The newest hundred, newest first: enough for the last edit of a person and the one of the bot before it.
# https://docs.github.com/graphql/reference/objects#usercontentedit (`diff` is the whole text after the edit)
EDITS = """
query($ids: [ID!]!) {
  nodes(ids: $ids) {
    ... on Comment { userContentEdits(first: 100) { nodes { id editedAt editor { ...account } diff } } }
  }
}
fragment account on Actor { __typename login ... on User { databaseId } ... on Bot { databaseId } }
"""
RENDERED = "query($ids: [ID!]!) { nodes(ids: $ids) { ... on Comment { bodyHTML } } }"


THREAD = ("repository", "issueOrPullRequest")
_WORDS = {
    "comments": "comments",
    "labels": "labels",
    "commits": "commits",
    "reviews": "reviews",
    "reviewThreads": "review threads",
    "closingIssuesReferences": "issues that it closes",
    "closedByPullRequestsReferences": "pull requests that close it",
    "milestone": "milestone",
    "timelineItems": "earlier titles",
    "author": "name of its author",
}
"""The parts of a thread that may be missing. Without its title, dates or head it is not told at all."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A thread as of a moment, with its newest comments and commits; without the reviews, files and checks.

    `comments_before` and `commits_before` are where earlier ones begin, None where there are none.
    """

    thread: WholeThread
    comments_before: str | None = None
    commits_before: str | None = None


async def read_overview(github: GitHub, repository: Repository, number: int, moment: Moment, gaps: Gaps) -> Overview:
    """Return the thread as of a moment, with what one request tells of it."""
    answer = await github.ask(repository, OVERVIEW, THREAD, number=number)
    thread = answer.needed
    for problem in answer.problems:
        if (part := str(problem.path[len(THREAD)])) not in _WORDS:
            raise problem.error
        if thread.get(part) is None:
            (gaps.missing if answer.may_pass else gaps.cut).append(f"the {_WORDS[part]}")
    pull, related = None, "closedByPullRequestsReferences"
    if thread["__typename"] == "PullRequest":
        related = "closingIssuesReferences"
        commits = tuple(map(_commit, _nodes(answer, thread, "commits", gaps, paged=True)))
        head = await _head_at(github, repository, thread, commits, moment)
        base, branch = thread["baseRefName"], thread["headRefName"]
        pull = PullRequest(base, branch, head, pushed_since=head != thread["headRefOid"], commits=commits)
    linked = _nodes(answer, thread, related, gaps)
    whole = WholeThread(
        title=_title(thread, moment, gaps),
        is_public=answer.data["repository"]["visibility"] == "PUBLIC",
        description=_text(thread),
        comments=tuple(map(_text, _nodes(answer, thread, "comments", gaps, paged=True))),
        labels=tuple(label["name"] for label in _nodes(answer, thread, "labels", gaps)),
        milestone=(thread["milestone"] or {}).get("title"),
        linked=tuple(_linked(one) for one in linked if one["repository"]["databaseId"] == repository.id),
        pull=pull,
    )
    return Overview(whole, _before(thread["comments"]), _before(thread.get("commits")))


def _title(thread: Any, moment: Moment, gaps: Gaps) -> str:
    """Return the title at the moment."""
    renames = thread["timelineItems"] or {"nodes": [None]}
    later = [one for one in answers.nodes(renames) if datetime.fromisoformat(one["createdAt"]) > moment.asked_at]
    if None in renames["nodes"] or (later == renames["nodes"] != [] and renames["pageInfo"]["hasPreviousPage"]):
        gaps.cut.append("the title at the time of the request")
        return "(not known)"
    return str(later[0]["previousTitle"] if later else thread["title"])


def as_of(pull: PullRequest, earlier: Sequence[Commit], moment: Moment) -> PullRequest:
    """Return the pull request with the commits that its head had at the moment; `earlier` come before those it has."""
    commits = (*earlier, *pull.commits)
    at = next((at for at, commit in enumerate(commits) if commit.sha == pull.head_sha), len(commits) - 1)
    return replace(pull, commits=tuple(one for one in commits[: at + 1] if one.committed_at <= moment.asked_at))


async def _head_at(
    github: GitHub, repository: Repository, thread: Any, commits: Sequence[Commit], moment: Moment
) -> str:
    """Return the head of the pull request at the moment. What the bot itself pushed since counts as well.

    https://docs.github.com/rest/repos/repos#list-repository-activities
    """
    head: str = thread["headRefOid"]
    if moment.head_sha is not None or (thread["headRepository"] or {}).get("databaseId") != repository.id:
        return moment.head_sha or head

    def is_before(activity: Any) -> bool:
        return datetime.fromisoformat(activity["timestamp"]) <= moment.asked_at

    try:
        path, ref = "/activity{?ref,per_page}", f"refs/heads/{thread['headRefName']}"
        newest_first = await github.get_all(repository, path, until=is_before, ref=ref)
    except GitHubError:
        # An older Enterprise Server: the dates of the commits have to do.
        known = [commit.sha for commit in commits if commit.committed_at <= moment.asked_at]
        return known[-1] if known else head
    later = [one for one in reversed(newest_first) if not is_before(one)]
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


@dataclass(frozen=True, slots=True)
class Edit:
    """One version of a text, by GitHub's id of it: who wrote it and when. What was deleted has no `body`."""

    id: str
    by: Actor
    at: datetime
    body: str | None


async def read_edits(github: GitHub, repository: Repository, node_id: str) -> tuple[Edit, ...]:
    """Return the newest versions of a text, oldest first; none of a text that nobody edited."""
    found = await github.query(repository, EDITS, ids=[node_id])
    edits = [
        Edit(one["id"], _account(one["editor"]), datetime.fromisoformat(one["editedAt"]), one["diff"])
        for one in answers.nodes(found["nodes"][0]["userContentEdits"])
    ]
    return tuple(reversed(edits))


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


async def read_comments(
    github: GitHub, repository: Repository, number: int, before: str | None, gaps: Gaps
) -> tuple[Text, ...]:
    """Return the thousand comments of the thread before this cursor, oldest first; none without one."""
    if before is None:
        return ()
    return tuple(map(_text, await _pages(github, repository, number, "comments", _COMMENT, gaps, before)))


async def read_commits(
    github: GitHub, repository: Repository, number: int, before: str | None, gaps: Gaps
) -> tuple[Commit, ...]:
    """Return the commits of the pull request before this cursor, oldest first; none without one."""
    if before is None:
        return ()
    return tuple(map(_commit, await _pages(github, repository, number, "commits", _COMMITTED, gaps, before)))


async def read_reviews(github: GitHub, repository: Repository, number: int, gaps: Gaps) -> tuple[Text, ...]:
    """Return the texts of the pull request's reviews, oldest first, without the reviews that have no text."""
    reviews = await _pages(github, repository, number, "reviews", _COMMENT, gaps)
    return tuple(_text(one) for one in reviews if one["body"])


async def read_review_threads(
    github: GitHub, repository: Repository, number: int, bot_id: int, gaps: Gaps
) -> tuple[ReviewThread, ...]:
    """Return the threads of inline comments, oldest first; of the resolved ones those that the bot began."""
    nodes = f"id isResolved isOutdated path line comments(first: 50) {{ nodes {{ {_REMARK} }} {_NEXT} }}"
    threads = list[ReviewThread]()
    for one in await _pages(github, repository, number, "reviewThreads", nodes, gaps):
        first = next(iter(one["comments"]["nodes"]), None)
        if first is None and one["comments"]["nodes"]:  # nobody knows who began it
            gaps.cut.append("a review thread whose first comment is not shown")
        elif not one["isResolved"] or (first and _text(first).author.id == bot_id):
            threads.append(_review_thread(one, *await _all_remarks(github, repository, one, gaps)))
    return tuple(threads)


_REMARKS = f"""
query($id: ID!, $after: String) {{
  node(id: $id) {{ ... on PullRequestReviewThread {{
    comments(first: 100, after: $after) {{ nodes {{ {_REMARK} }} {_NEXT} }}
  }} }}
}}
"""


async def _all_remarks(github: GitHub, repository: Repository, thread: Any, gaps: Gaps) -> tuple[list[Any], bool]:
    """Return the comments of a review thread, of which the first page is at hand, and whether these are all."""
    connection, may_pass = thread["comments"], False
    read, found = len(connection["nodes"]), answers.nodes(connection)
    for _ in range(MOST_PAGES):
        if not connection["pageInfo"]["hasNextPage"]:
            break
        after = connection["pageInfo"]["endCursor"]
        try:
            answer = await github.ask(repository, _REMARKS, ("node", "comments"), id=thread["id"], after=after)
        except GitHubError as problem:  # the others are told
            may_pass = isinstance(problem, Transient)
            break
        connection, may_pass = answer.needed, answer.may_pass
        read, found = read + len(connection["nodes"]), found + answers.nodes(connection)
    total = connection["totalCount"] if connection["pageInfo"]["hasNextPage"] else read
    gaps.some(total - len(found), total, "comments of a review thread", may_pass=may_pass)
    return found, len(found) == total


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
    found = await github.ask(repository, RENDERED, ("nodes",), ids=list(node_ids))
    return tuple(node["bodyHTML"] for node in found.needed if node)


async def read_files(
    github: GitHub, repository: Repository, number: int, pull: PullRequest, gaps: Gaps
) -> tuple[ChangedFile, ...]:
    """https://docs.github.com/rest/pulls/pulls#list-pull-requests-files; of an older head,
    https://docs.github.com/rest/commits/commits#compare-two-commits
    """
    most = MOST_COMPARED if pull.pushed_since else MOST_FILES
    if pull.pushed_since:
        span = f"{pull.base}...{pull.head_sha}"
        found = (await github.get(repository, "/compare/{span}{?per_page}", span=span, per_page=1))["files"]
    else:
        found = await github.get_all(repository, "/pulls/{number}/files{?per_page}", number=number)
    if len(found) >= most:  # GitHub does not say whether there are more
        gaps.cut.append(f"the changed files after the first {len(found)}")
    return tuple(
        ChangedFile(one["filename"], one["status"], one["additions"], one["deletions"], one.get("patch"))
        for one in found
    )


async def _pages(
    github: GitHub,
    repository: Repository,
    number: int,
    part: str,
    nodes: str,
    gaps: Gaps,
    before: str | None = None,
) -> list[Any]:
    """Return the items of one connection with these fields, oldest first: of the newest pages before the cursor."""
    page = f"{part}(last: 100, before: $before) {{ nodes {{ {nodes} }} {_PAGE} }}"
    kind = "pullRequest"
    if part == "comments":
        kind, page = "issueOrPullRequest", f"... on Issue {{ {page} }} ... on PullRequest {{ {page} }}"
    thread = f"repository(owner: $owner, name: $name) {{ databaseId {kind}(number: $number) {{ {page} }} }}"
    document = f"query({_ARGUMENTS}, $before: String) {{ {thread} }}"
    newest_first, read, pages = list[Any](), PER_PAGE if before else 0, 0
    while True:
        answer = await github.ask(repository, document, ("repository", kind, part), number=number, before=before)
        read, pages = read + len(answer.needed["nodes"]), pages + 1
        newest_first += reversed(_nodes(answer, answer.data["repository"][kind], part, gaps, paged=True))
        if (before := _before(answer.needed)) is None:
            break
        if pages == MOST_PAGES:
            total = answer.needed["totalCount"]
            gaps.some(total - read, total, _WORDS[part])
            break
    return newest_first[::-1]


def _nodes(answer: Answer, holder: Any, part: str, gaps: Gaps, *, paged: bool = False) -> list[Any]:
    """Return the items of a connection and note what is not among them; `paged`: other pages may have it."""
    connection = holder[part]
    if connection is None:
        return []
    shown, total = answers.nodes(connection), connection["totalCount"]
    left_out = len(connection["nodes"]) - len(shown) if paged else total - len(shown)
    gaps.some(left_out, total, _WORDS[part], may_pass=answer.may_pass)
    return shown


def _before(connection: Any) -> str | None:
    """Return the cursor of the page before this one."""
    if connection is None or not connection["pageInfo"]["hasPreviousPage"]:
        return None
    return str(connection["pageInfo"]["startCursor"])


def _commit(node: Any) -> Commit:
    commit = node["commit"]
    return Commit(commit["oid"], commit["messageHeadline"], datetime.fromisoformat(commit["committedDate"]))


def _linked(node: Any) -> LinkedThread:
    kind: Literal["issue", "pull"] = "issue" if node["__typename"] == "Issue" else "pull"
    return LinkedThread(kind, node["number"], node["title"], node["state"].lower(), _text(node))


def _review_thread(node: Any, comments: Sequence[Any], is_whole: bool) -> ReviewThread:
    hunk = comments[0]["diffHunk"] if comments else ""
    state = {"is_resolved": node["isResolved"], "is_outdated": node["isOutdated"]}
    # Who has the last word is not known of a part: without its id it is not resolved.
    thread_id = node["id"] if is_whole else ""
    return ReviewThread(node["path"], node["line"], hunk, tuple(map(_text, comments)), thread_id, **state)


def _text(node: Any) -> Text:
    edited = node["lastEditedAt"]
    return Text(
        _account(node["author"]),
        node["body"] or "",
        datetime.fromisoformat(node["createdAt"]),
        datetime.fromisoformat(edited) if edited else None,
        int(node["fullDatabaseId"]) if node["fullDatabaseId"] else None,
        node["id"],
        is_hidden=node.get("isMinimized", False),
    )
