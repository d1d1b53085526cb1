"""REST: pull requests, reviews and inline comments."""

from starlette.responses import Response

from bot.simulated.github.errors import invalid, not_found
from bot.simulated.github.model import Pull, Repository, Review
from bot.simulated.github.payloads import Json
from bot.simulated.github.rest_call import Call, answer, empty, optional_text, required_text
from bot.simulated.github.rest_issues import demand_author, edit_thread, review_comment_target
from bot.simulated.github.world import find_pull

MERGE_METHODS = ("merge", "squash")
# https://docs.github.com/rest/pulls/pulls#list-pull-requests-files and
# https://docs.github.com/rest/commits/commits#compare-two-commits
MOST_FILES = 3000
MOST_COMPARED = 300


async def list_pulls(call: Call) -> Response:
    query = call.request.query_params
    state, head, base = query.get("state", "open"), query.get("head"), query.get("base")
    found = [
        pull
        for pull in call.repository().pulls
        if state in ("all", pull.state)
        and head in (None, f"{pull.head_repository.owner.login}:{pull.head_ref}")
        and base in (None, pull.base_ref)
    ]
    return call.paginate(found[::-1], call.payloads.pull)


async def create_pull(call: Call) -> Response:
    repository, body = call.repository(), await call.json()
    source, head = _head(call, repository, required_text(body, "head"))
    call.world.demand(source, call.user, "write", "Resource not accessible by personal access token")
    pull = await call.acts.open_pull(
        call.user,
        repository,
        head=head,
        base=required_text(body, "base"),
        title=required_text(body, "title"),
        body=optional_text(body, "body"),
        draft=body.get("draft") is True,
        head_repository=source,
    )
    return answer(call.payloads.pull(pull), 201)


async def get_pull(call: Call) -> Response:
    pull = _pull(call)
    known = {"MERGEABLE": True, "CONFLICTING": False}.get(await call.acts.mergeable(pull))
    return answer(call.payloads.pull(pull) | {"mergeable": known})


async def update_pull(call: Call) -> Response:
    pull, body = _pull(call), await call.json()
    if call.user.id != pull.author.id:
        call.world.demand(pull.repository, call.user, "write", "Must have admin rights to Repository.")
    edit_thread(call, pull, body)
    return answer(call.payloads.pull(pull))


async def merge_pull(call: Call) -> Response:
    pull, body = _pull(call), await call.json()
    call.world.demand(pull.repository, call.user, "write", "Must have admin rights to Repository.")
    method = body.get("merge_method", "merge")
    if method not in MERGE_METHODS:
        raise invalid("PullRequest", "merge_method", "this merge method is not simulated")
    commit = await call.acts.merge(call.user, pull, method)
    return answer({"sha": commit, "merged": True, "message": "Pull Request successfully merged"})


async def list_files(call: Call) -> Response:
    pull = _pull(call)
    span = f"{pull.base_sha}...refs/pull/{pull.number}/head"
    return call.paginate(await _changed_files(pull.repository, span, MOST_FILES), dict)


async def compare(call: Call) -> Response:
    """The files are on the first page: https://docs.github.com/rest/commits/commits#compare-two-commits."""
    return answer({"files": await _changed_files(call.repository(), call.request.path_params["span"], MOST_COMPARED)})


async def _changed_files(repository: Repository, span: str, most: int) -> list[dict[str, object]]:
    """Return the first files that differ from the merge base, with their patch."""
    git = repository.git
    names = [row.split("\t") for row in (await git.run("diff", "--numstat", "--no-renames", span)).splitlines()]
    letters = [row.split("\t") for row in (await git.run("diff", "--name-status", "--no-renames", span)).splitlines()]
    statuses = {name: letter for letter, name in letters}
    found = []
    for added, removed, name in names[:most]:
        patch = await git.run("diff", "--no-renames", span, "--", name)
        _, hunks, text = patch.partition("\n@@ ")
        found.append(
            {
                "filename": name,
                "status": {"A": "added", "D": "removed"}.get(statuses[name], "modified"),
                "additions": 0 if added == "-" else int(added),
                "deletions": 0 if removed == "-" else int(removed),
                **({"patch": f"@@ {text}"} if hunks else {}),
            }
        )
    return found


async def list_review_comments(call: Call) -> Response:
    return call.paginate(_pull(call).review_comments, call.payloads.review_comment)


async def create_reply(call: Call) -> Response:
    parent = review_comment_target(call)
    if parent.thread is not _pull(call):
        raise not_found()
    comment = call.acts.reply(call.user, parent, await call.body_text())
    return answer(call.payloads.review_comment(comment), 201)


async def get_review_comment(call: Call) -> Response:
    return answer(call.payloads.review_comment(review_comment_target(call)))


async def update_review_comment(call: Call) -> Response:
    comment = review_comment_target(call)
    demand_author(call, comment)
    call.acts.edit_comment(call.user, comment, await call.body_text())
    return answer(call.payloads.review_comment(comment))


async def delete_review_comment(call: Call) -> Response:
    comment = review_comment_target(call)
    demand_author(call, comment)
    call.acts.delete_comment(call.user, comment)
    return empty()


async def list_reviews(call: Call) -> Response:
    pull = _pull(call)
    return call.paginate(pull.reviews, lambda review: _review(call, review))


async def get_review(call: Call) -> Response:
    review_id = call.number("review_id")
    found = next((review for review in _pull(call).reviews if review.id == review_id), None)
    if found is None:
        raise not_found()
    return answer(_review(call, found))


async def list_comments_of_review(call: Call) -> Response:
    pull, review_id = _pull(call), call.number("review_id")
    if all(review.id != review_id for review in pull.reviews):
        raise not_found()
    found = [comment for comment in pull.review_comments if comment.review.id == review_id]
    return call.paginate(found, call.payloads.review_comment)


def _pull(call: Call) -> Pull:
    return find_pull(call.repository(), call.number("number"))


def _review(call: Call, review: Review) -> Json:
    return call.payloads.review(review) | {"state": review.state.upper()}


def _head(call: Call, repository: Repository, head: str) -> tuple[Repository, str]:
    """Return the repository and branch of `branch` or `owner:branch`; another owner means a fork."""
    owner, colon, branch = head.partition(":")
    if not colon:
        return repository, head
    for candidate in call.world.repositories.values():
        if candidate.owner.login.lower() == owner.lower() and repository in (candidate, candidate.parent):
            return candidate, branch
    raise invalid("PullRequest", "head", "head is invalid")
