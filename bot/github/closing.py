"""The issues that a pull request closes: GraphQL's `closingIssuesReferences`. The REST API does not have them."""

from dataclasses import dataclass
from typing import Any

from bot.github.errors import NotFound

# https://docs.github.com/graphql/reference/objects#pullrequest, `closingIssuesReferences`; at most 100 a page:
# https://docs.github.com/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api#node-limit
QUERY = """
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


@dataclass(frozen=True, slots=True)
class IssueRef:
    """An issue, perhaps of another repository."""

    repository_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Page:
    """One page of references and the cursor of the next, if there is one."""

    references: tuple[IssueRef, ...]
    after: str | None


def page(data: Any) -> Page:
    """Read one answer. Nulls are left out: an issue that the credentials may not see is null. Raises NotFound."""
    pull = ((data or {}).get("repository") or {}).get("pullRequest")
    if pull is None:
        raise NotFound("the pull request is gone")
    connection = pull["closingIssuesReferences"]
    if connection is None:
        return Page((), None)
    references = tuple(
        IssueRef(node["repository"]["databaseId"], node["number"])
        for node in connection["nodes"] or ()
        if node is not None
    )
    info = connection["pageInfo"]
    return Page(references, info["endCursor"] if info["hasNextPage"] else None)
