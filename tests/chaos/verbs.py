"""What each verb promises, after a round: from GitHub's side and the rows."""

import re
from collections import Counter
from collections.abc import Iterable

from bot.simulated.github.model import Issue, Pull, Repository
from bot.thread import replies
from bot.verbs import plan, undo, update
from tests.chaos.checks import (
    APPROVED_TWICE,
    DOUBLED,
    LOST,
    UNDONE_WRONG,
    UPDATED_WRONG,
    Evidence,
    History,
    Violation,
    answered_by,
    git,
)

AT_ONCE = (
    *(plan.NOTHING_TO_APPROVE, plan.PLAN_NOT_THERE, plan.PLAN_TOO_LONG, "The plan of turn "),
    *(undo.NOTHING, update.NOTHING, replies.NOTHING_TO_REVIEW),
)
"""How replies begin to commands for which there is nothing to do. `/retry` may also reply what it repeats would."""
_REVERTED = re.compile(r"^This reverts commit ([0-9a-f]{40})\.$", re.MULTILINE)
_FOR = re.compile(r"^Requested by .*#issuecomment-(\d+)$", re.MULTILINE)
_MARKER = re.compile(r"<!-- threadtree:[^>]*-->")


async def verbs(evidence: Evidence) -> list[Violation]:
    """Return what is wrong with commands, messages, plans, reviews, undo and update."""
    found = [*commands(evidence), *told(evidence), *approvals(evidence), *reviews(evidence)]
    for repository in evidence.stream.repositories:
        found += [*await undone(evidence, repository), *await updated(evidence, repository)]
    return found


def ends_by_verb(evidence: Evidence) -> dict[str, dict[str, int]]:
    """Return how many turns of each verb ended how. What a running agent was told is a message."""
    ends: dict[str, Counter[str]] = {}
    for turn in evidence.all_turns:
        verb = "message" if turn["is_told"] else "approve" if turn["approves"] else turn["verb"]
        ends.setdefault(verb, Counter()).update([turn["state"]])
    return {verb: dict(states) for verb, states in ends.items()}


def _answers(evidence: Evidence, thread: Issue) -> list[str]:
    """Return what the bot says on the thread, also as reviews."""
    bot = evidence.stream.here.github.bot
    said = [one.body for one in evidence.bot_comments(thread)]
    if isinstance(thread, Pull):
        said += [one.body or "" for one in thread.reviews if one.author.id == bot.id]
    return said


def commands(evidence: Evidence) -> Iterable[Violation]:
    """A command is one turn with one answer, or is answered once at once."""
    stream = evidence.stream
    for thread in stream.threads:
        said = _answers(evidence, thread)
        answered = Counter(asked for body in said for asked in answered_by(body))
        mine = [one for one in stream.commands if one.thread is thread]
        for asked in mine:
            turn = evidence.turn_of.get(asked.comment.id)
            if turn is not None and (times := answered[asked.comment.id]) != 1:
                kind = DOUBLED if times else LOST
                yield Violation(kind, f"/{asked.verb} on {thread!r} has {times} answers; its turn: {dict(turn)}")
        no_turn = [one for one in mine if one.comment.id not in evidence.turn_of and one.verb != "retry"]
        at_once = sum(body.startswith(AT_ONCE) and not answered_by(body) for body in said)
        if at_once != len(no_turn):
            kind = LOST if at_once < len(no_turn) else DOUBLED
            asked_for = [(one.verb, one.comment.id) for one in no_turn]
            yield Violation(kind, f"{asked_for} on {thread!r} made no turn, and {at_once} were answered at once")


def told(evidence: Evidence) -> Iterable[Violation]:
    """What is done is in one answer, also where it was a message to the agent of another request."""
    for thread in evidence.stream.threads:
        finals = [body for body in _answers(evidence, thread) if answered_by(body)]
        for asked in evidence.stream.requests:
            turn = evidence.turn_of.get(asked.comment.id)
            if asked.thread is thread and asked.verb == "work" and turn is not None and turn["state"] == "done":
                times = sum(f"{asked.tag} is done." in body for body in finals)
                if times != 1:
                    yield Violation(DOUBLED if times else LOST, f"{times} answers say that {asked.tag} is done")


def approvals(evidence: Evidence) -> Iterable[Violation]:
    """A plan that was approved runs to its end once."""
    done = Counter(turn["approves"] for turn in evidence.turns if turn["approves"] and turn["state"] == "done")
    for approved, times in done.items():
        if times > 1:
            yield Violation(APPROVED_TWICE, f"the plan of turn {approved} was carried out {times} times")


def reviews(evidence: Evidence) -> Iterable[Violation]:
    """A review is posted once, as a review or, where GitHub takes none, as a comment."""
    bot = evidence.stream.here.github.bot
    for asked in evidence.stream.commands:
        if asked.verb != "review" or not isinstance(asked.thread, Pull):
            continue
        turn = evidence.turn_of.get(asked.comment.id)
        times = sum(f"{asked.tag} is read." in body for body in _answers(evidence, asked.thread))
        if times > 1 or (not times and turn is not None and turn["state"] == "done"):
            yield Violation(DOUBLED if times else LOST, f"{times} reviews say {asked.tag} on {asked.thread!r}")
    for pull in (one for one in evidence.stream.threads if isinstance(one, Pull)):
        left = [one.body or "" for one in pull.reviews if one.author.id == bot.id]
        for marker, times in Counter(marker for body in left for marker in _MARKER.findall(body)).items():
            if times > 1:
                yield Violation(DOUBLED, f"{times} reviews of {pull!r} have the marker {marker}")


async def undone(evidence: Evidence, repository: Repository) -> list[Violation]:
    """Each request is taken back once, by one commit for each `/undo`, which takes back what it names."""
    found: list[Violation] = []
    turns = Counter(turn["undoes"] for turn in evidence.turns if turn["undoes"] and turn["state"] == "done")
    found += [Violation(UNDONE_WRONG, f"turn {turn} was taken back {n} times") for turn, n in turns.items() if n > 1]
    tips = sorted({push.after for push in repository.pushes if push.after is not None})
    log = await git(repository.git.path, "log", "--format=%H %B%x00", "--grep=^Take back turn ", *tips)
    made = Counter[str]()
    for entry in filter(None, (one.strip() for one in log.split("\0"))):
        commit, _, message = entry.partition(" ")
        made.update(_FOR.findall(message))
        named = _REVERTED.findall(message)
        undoing = await _changes(repository, commit)
        done = [await _changes(repository, one) for one in named]
        if foreign := undoing.keys() - {name for one in done for name in one}:
            found.append(Violation(UNDONE_WRONG, f"{commit} takes back {named}, and changes {sorted(foreign)} too"))
        if len(done) == 1 and undoing != {name: (minus, plus) for name, (plus, minus) in done[0].items()}:
            found.append(Violation(UNDONE_WRONG, f"{commit} is {undoing}, not the reverse of {named}: {done[0]}"))
    found += [Violation(UNDONE_WRONG, f"/undo {comment} made {n} commits") for comment, n in made.items() if n > 1]
    return found


async def _changes(repository: Repository, commit: str) -> dict[str, tuple[str, str]]:
    """Return how many lines the commit adds and deletes, by file, against its first parent."""
    numbers = await git(repository.git.path, "diff", "--numstat", "--no-renames", f"{commit}^1", commit)
    lines = [line.split("\t") for line in numbers.splitlines()]
    return {name: (plus, minus) for plus, minus, name in lines}


async def updated(evidence: Evidence, repository: Repository) -> list[Violation]:
    """`/update` merges the base once, as it was when it was asked for or newer."""
    found: list[Violation] = []
    history = await History.of(repository)
    for asked in evidence.stream.commands:
        turn = evidence.turn_of.get(asked.comment.id)
        if asked.verb != "update" or asked.thread.repository is not repository or turn is None:
            continue
        if turn["state"] != "done" or turn["pushed_to"] is None or "without conflicts" not in (turn["answer"] or ""):
            continue
        after, before, branch = turn["pushed_head"], turn["head_before"], turn["pushed_to"]
        merges = await git(repository.git.path, "log", "--first-parent", "--merges", "--format=%s", after, f"^{before}")
        base = asked.thread.base_ref if isinstance(asked.thread, Pull) else repository.default_branch
        mine = merges.splitlines().count(f"Merge branch '{base}' into {branch}")
        if mine != 1:
            found.append(Violation(UPDATED_WRONG, f"/update of turn {turn['id']} made {mine} merges of {base}"))
        moves = [push for push in repository.pushes if push.ref == f"refs/heads/{base}"]
        known = [push.after for push in moves if push.at <= asked.comment.created_at]
        if known and not history.has(after, known[-1]):
            found.append(Violation(UPDATED_WRONG, f"/update of turn {turn['id']} lacks {known[-1]} of {base}"))
    return found
