"""REST: reviews that are submitted with remarks on lines, and where these lines are by now."""

import re
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from bot.simulated.github.errors import RefusedError
from bot.simulated.github.git import GitFailedError
from bot.simulated.github.model import Pull, ReviewComment, ReviewState
from bot.simulated.github.pull_acts import LineNote
from bot.simulated.github.rest_call import Call, answer, optional_text, required_text
from bot.simulated.github.world import find_pull

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_STATES: dict[str, ReviewState] = {
    "COMMENT": "commented",
    "APPROVE": "approved",
    "REQUEST_CHANGES": "changes_requested",
}


async def create_review(call: Call) -> Response:
    """https://docs.github.com/rest/pulls/reviews#create-a-review-for-a-pull-request"""
    pull, asked = find_pull(call.repository(), call.number("number")), await call.json()
    state, text = _STATES.get(str(asked.get("event"))), optional_text(asked, "body")
    if state is None:
        raise _unprocessable("A pending review is not simulated")
    if state != "commented" and call.user.id == pull.author.id:
        raise _unprocessable("Can not approve or request changes on your own pull request")
    if state != "approved" and not (text or "").strip():
        raise _unprocessable("Body can't be blank")
    commit = optional_text(asked, "commit_id") or pull.head_sha
    if not re.fullmatch(r"[0-9a-f]{40}", commit) or not await _is_of(pull, commit):
        raise _unprocessable("The commit is not part of the pull request")
    remarks = [_remark(one) for one in asked.get("comments") or []]
    for one in remarks:
        if problem := await _unplaced(pull, commit, one):
            raise _unprocessable(problem)
    review = call.acts.submit(call.user, pull, text, state, commit, remarks)
    return answer(call.payloads.review(review) | {"state": review.state.upper()})


async def line_now(pull: Pull, comment: ReviewComment) -> int | None:
    """Return the line that a remark is on by now, None where the line was changed since: the remark is outdated."""
    if comment.commit_id == pull.head_sha or comment.side == "LEFT":
        return comment.line
    span = (comment.commit_id, pull.head_sha)
    try:
        patch = await pull.repository.git.run("diff", "--no-renames", "--unified=0", *span, "--", comment.path)
    except GitFailedError:
        return None
    shift = 0
    for hunk in map(_HUNK.match, patch.splitlines()):
        if hunk is None:
            continue
        first, removed, added = int(hunk[1]), int(hunk[2] or 1), int(hunk[4] or 1)
        if removed and first <= comment.line < first + removed:
            return None
        shift += (added - removed) if first < comment.line else 0
    return comment.line + shift


def _unprocessable(problem: str) -> RefusedError:
    return RefusedError(422, "Unprocessable Entity", [problem])


def _remark(one: Any) -> LineNote:
    if not isinstance(one, dict):
        raise RefusedError(422, "Invalid request.")
    line, start = one.get("line"), one.get("start_line")
    if type(line) is not int or (start is not None and type(start) is not int):
        raise RefusedError(422, "Invalid request.\n\nFor 'properties/line', nil is not an integer.")
    return LineNote(required_text(one, "path"), line, str(one.get("side", "RIGHT")), required_text(one, "body"), start)


async def _unplaced(pull: Pull, commit: str, one: LineNote) -> str | None:
    """Return in GitHub's words why a remark is on no line of the commit's diff, None where it is."""
    patch = await pull.repository.git.run("diff", "--no-renames", f"{pull.base_sha}...{commit}", "--", one.path)
    if not patch:
        return "Path could not be resolved"
    for lines in _sides(patch, one.side):
        if one.line in lines and (one.start_line is None or (one.start_line in lines and one.start_line < one.line)):
            return None
    return "Line could not be resolved"


def _sides(patch: str, side: str) -> Iterator[range]:
    """Yield the lines that each hunk shows on one side."""
    for hunk in map(_HUNK.match, patch.splitlines()):
        if hunk is not None:
            first, number = (hunk[1], hunk[2]) if side == "LEFT" else (hunk[3], hunk[4])
            yield range(int(first), int(first) + int(number or 1))


async def _is_of(pull: Pull, commit: str) -> bool:
    """Return whether a commit is, or was, of the pull request's branch: GitHub keeps what was replaced by force."""
    git = pull.repository.git
    try:
        return not await git.is_ancestor(commit, pull.base_sha)
    except GitFailedError:
        return False
