"""REST: issues, comments, reactions and labels."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from starlette.responses import RedirectResponse, Response

from bot.simulated.github.errors import RefusedError, invalid, not_found
from bot.simulated.github.model import REACTION_CONTENTS, Comment, Issue, Reaction, Repository, ReviewComment
from bot.simulated.github.rest_call import Call, answer, empty, optional_text, required_text
from bot.simulated.github.world import find_thread

T = TypeVar("T")
C = TypeVar("C", Comment, Issue)


async def list_issues(call: Call) -> Response:
    wanted = call.request.query_params.get("state", "open")
    creator = call.request.query_params.get("creator")
    threads = [
        issue
        for issue in call.repository().threads.values()
        if wanted in ("all", issue.state) and creator in (None, issue.author.login)
    ]
    return call.paginate(_since(call, threads)[::-1], call.payloads.issue)


async def create_issue(call: Call) -> Response:
    body = await call.json()
    repository = call.repository()
    title, text = required_text(body, "title"), optional_text(body, "body")
    # GitHub silently drops labels and assignees from people who may not set them.
    trusted = repository.may(call.user, "triage")
    labels = [str(name) for name in body.get("labels", [])] if trusted else []
    assignees = [call.world.find_user(str(login)) for login in body.get("assignees", [])] if trusted else []
    issue = call.acts.open_issue(call.user, repository, title, text, labels, assignees)
    return answer(call.payloads.issue(issue), 201)


async def get_issue(call: Call) -> Response:
    """https://docs.github.com/rest/issues/issues#get-an-issue: transferred ones lead on, deleted ones are gone."""
    gone = call.repository().gone
    if (number := call.number("number")) in gone:
        if (moved := gone[number]) is None:
            raise RefusedError(410, "This issue was deleted")
        return RedirectResponse(call.payloads.issue(moved)["url"], 301)
    return answer(call.payloads.issue(_thread(call)))


async def update_issue(call: Call) -> Response:
    thread, body = _thread(call), await call.json()
    if call.user.id != thread.author.id:
        _demand_admin(call, thread.repository)
    edit_thread(call, thread, body)
    return answer(call.payloads.issue(thread))


def edit_thread(call: Call, thread: Issue, body: dict[str, Any]) -> None:
    """Apply the changes of a PATCH of an issue or pull request."""
    title, text = optional_text(body, "title"), optional_text(body, "body")
    if title is not None or text is not None:
        call.acts.edit_thread(call.user, thread, title=title, body=text)
    match body.get("state"):
        case None:
            pass
        case "open" | "closed" as state:
            call.acts.set_state(call.user, thread, state)
        case _:
            raise invalid("Issue", "state", "state is not a valid state")


async def list_comments(call: Call) -> Response:
    comments = _since(call, _thread(call).comments)
    return call.paginate(comments, call.payloads.comment)


async def create_comment(call: Call) -> Response:
    thread = _thread(call)
    comment = call.acts.comment(call.user, thread, await call.body_text())
    return answer(call.payloads.comment(comment), 201)


async def get_comment(call: Call) -> Response:
    return answer(call.payloads.comment(_issue_comment(call)))


async def update_comment(call: Call) -> Response:
    comment = _issue_comment(call)
    demand_author(call, comment)
    call.acts.edit_comment(call.user, comment, await call.body_text())
    return answer(call.payloads.comment(comment))


async def delete_comment(call: Call) -> Response:
    comment = _issue_comment(call)
    demand_author(call, comment)
    call.acts.delete_comment(call.user, comment)
    return empty()


def reactions(target: Callable[[Call], Issue | Comment]) -> tuple[Any, Any, Any]:
    """Return the three handlers (list, create, delete) for reactions on one kind of target."""

    async def list_reactions(call: Call) -> Response:
        return call.paginate(target(call).reactions, call.payloads.reaction)

    async def create_reaction(call: Call) -> Response:
        asked = await call.body_text("content")
        content = next((known for known in REACTION_CONTENTS if known == asked), None)
        if content is None:
            raise invalid("Reaction", "content", "content is not included in the list")
        reaction, is_new = call.acts.react(call.user, target(call), content)
        return answer(call.payloads.reaction(reaction), 201 if is_new else 200)

    async def delete_reaction(call: Call) -> Response:
        thing = target(call)
        reaction = _own_reaction(call, thing.reactions)
        thing.reactions.remove(reaction)
        call.world.changes.notify()
        return empty()

    return list_reactions, create_reaction, delete_reaction


async def list_blockers(call: Call) -> Response:
    """https://docs.github.com/rest/issues/issue-dependencies#list-dependencies-an-issue-is-blocked-by"""
    return call.paginate(_thread(call).blocked_by, call.payloads.issue)


async def list_labels(call: Call) -> Response:
    thread = _thread(call)
    return call.paginate(thread.labels, lambda label: call.payloads.label(label, thread.repository))


async def add_labels(call: Call) -> Response:
    thread, body = _thread(call), await call.json()
    _demand_triage(call, thread.repository)
    names = body.get("labels")
    if not isinstance(names, list):
        raise invalid("Label", "labels", "labels must be an array")
    for name in names:
        call.acts.label(call.user, thread, str(name))
    return answer([call.payloads.label(label, thread.repository) for label in thread.labels])


async def remove_label(call: Call) -> Response:
    thread = _thread(call)
    _demand_triage(call, thread.repository)
    call.acts.unlabel(call.user, thread, call.text("name"))
    return answer([call.payloads.label(label, thread.repository) for label in thread.labels])


async def add_assignees(call: Call) -> Response:
    thread, body = _thread(call), await call.json()
    _demand_triage(call, thread.repository)
    for login in body.get("assignees", []):
        call.acts.assign(call.user, thread, call.world.find_user(str(login)))
    return answer(call.payloads.issue(thread), 201)


def demand_author(call: Call, comment: Comment) -> None:
    """Refuse a caller who neither wrote the comment nor may write to the repository."""
    if call.user.id != comment.author.id:
        _demand_admin(call, comment.thread.repository)


def issue_target(call: Call) -> Issue:
    return _thread(call)


def issue_comment_target(call: Call) -> Comment:
    return _issue_comment(call)


def review_comment_target(call: Call) -> ReviewComment:
    """Return the inline comment in the path, else 404."""
    wanted = call.number("comment_id")
    written = (comment for pull in call.repository().pulls for comment in pull.review_comments)
    return _one(next((comment for comment in written if comment.id == wanted), None))


def _issue_comment(call: Call) -> Comment:
    return _one(call.repository().comments.get(call.number("comment_id")))


def _one(found: T | None) -> T:
    if found is None:
        raise not_found()
    return found


def _thread(call: Call) -> Issue:
    return find_thread(call.repository(), call.number("number"))


def _own_reaction(call: Call, given: list[Reaction]) -> Reaction:
    wanted = call.number("reaction_id")
    reaction = next((reaction for reaction in given if reaction.id == wanted), None)
    if reaction is None or reaction.user.id != call.user.id:
        raise not_found()
    return reaction


def _since(call: Call, changed: list[C]) -> list[C]:
    text = call.request.query_params.get("since")
    if text is None:
        return changed
    try:
        since = datetime.fromisoformat(text)
    except ValueError as error:
        raise RefusedError(422, "Invalid value for parameter: since") from error
    return [one for one in changed if one.updated_at >= since]


def _demand_triage(call: Call, repository: Repository) -> None:
    call.world.demand(repository, call.user, "triage", "Resource not accessible by personal access token")


def _demand_admin(call: Call, repository: Repository) -> None:
    call.world.demand(repository, call.user, "write", "Must have admin rights to Repository.")
