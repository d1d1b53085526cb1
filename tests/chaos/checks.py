"""The promises after a round, from GitHub's side, the database's and the disk's. Each check returns what is wrong."""

import asyncio
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg

from bot.simulated.github.model import Comment, Issue, Push, Repository, Revision, User
from tests.chaos.stream import Asked, Stream
from tests.support.processes import BotProcess
from tests.support.world import PROGRESS

LOST, DOUBLED, ORDER, TOGETHER = "lost", "doubled", "out of order", "two in a directory"
COMMITS, ORPHANS, LEAKED, STUCK = "lost commits", "orphans", "leaked", "stuck"
FORCED, UNPUBLISHED = "forced", "unpublished"
MENDED_TWICE, RUNAWAY = "mended twice", "loops over limit"
FAILED, APPROVED_TWICE, UNDONE_WRONG, UPDATED_WRONG = "failed for no agent's reason", "ran twice", "undone", "updated"
KINDS = (
    *(LOST, DOUBLED, ORDER, TOGETHER, COMMITS, ORPHANS, LEAKED, STUCK, FORCED, UNPUBLISHED),
    *(MENDED_TWICE, RUNAWAY, FAILED, APPROVED_TWICE, UNDONE_WRONG, UPDATED_WRONG),
)
MOST_ATTEMPTS = 2
"""MAX_FIX_ATTEMPTS of a round."""

NOTICED_SECONDS = 2.0
"""So much later, at most, is the end of a process noticed."""
_LINK = re.compile(r"(request|message)\]\([^)]*#issuecomment-(\d+)\)")
_SHA = re.compile(r"[0-9a-f]{40}")
_MARKER = re.compile(r"<!-- threadtree:[^>]*-->")
_MOVED = "[Go to the answer]"
_KEPT, _GONE = "could not be pushed", "is no longer on GitHub"
_MENDS = "to mend that."

TURNS = """
select t.id, t.reason, t.cut_offs, (r.ask #>> '{target,id}')::bigint as source_id, t.conversation_id, t.claim,
       r.verb, r.is_told,
       case when r.is_told then coalesce((select j.state from turns j where j.id = r.joins), t.state) else t.state end
           as state,
       case when r.verb = 'fix' and r.retry_of is null then r.ask #>> '{of,head}' end as mends,
       (r.ask #>> '{of,plan}')::bigint as approves, t.undoes, t.head_before, t.pushed_to, t.pushed_head, t.answer
from turns t join requests r on r.turn_id = t.id order by t.id
"""
WORKTREES = "select w.*, n.name as node_name from worktrees w join nodes n on n.id = w.node order by w.id"
STUCK_ROWS = """
-- What is left where nothing should be: the queues are empty, and nothing is claimed.
select 'delivery ' || guid || ' is ' || state || ': ' || coalesce(error, '') from deliveries
where state in ('received', 'failed', 'dead')
union all select 'turn ' || id || ' is ' || state from turns where state in ('queued', 'running') or claim is not null
union all select 'operation ' || id || ' (' || kind || ') is ' || state from operations
where state in ('queued', 'running')
union all select 'outbox row ' || id || ' is ' || state || ': ' || coalesce(error, '') from outbox
where state in ('waiting', 'sending', 'failed')
union all select 'worktree ' || id || ' is ' || state from worktrees
where state in ('removing', 'lost') or removal_began
union all select 'job ' || id || ' (' || task_name || ') is ' || status from procrastinate_jobs
where status <> 'succeeded' and (task_name <> 'chore' or status = 'failed') -- chores come again every second
"""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: one of `KINDS`, and what shows it."""

    kind: str
    what: str


@dataclass(frozen=True)
class Evidence:
    """What the three sides say after a round."""

    stream: Stream
    turns: Sequence[asyncpg.Record]
    """Those that people asked for."""
    all_turns: Sequence[asyncpg.Record]
    """Also those because of failing checks, the oldest first."""
    worktrees: Sequence[asyncpg.Record]
    lines: Sequence[dict[str, Any]]
    """The agents' journal."""
    data_dirs: dict[str, Path]
    """By the node's name."""

    @classmethod
    async def of(cls, stream: Stream, lines: Sequence[dict[str, Any]], data_dirs: dict[str, Path]) -> "Evidence":
        """Read the rows."""
        connection = await asyncpg.connect(stream.here.dsn)
        try:
            turns, worktrees = await connection.fetch(TURNS), await connection.fetch(WORKTREES)
        finally:
            await connection.close()
        asked = [turn for turn in turns if turn["mends"] is None]
        return cls(stream, asked, turns, worktrees, lines, data_dirs)

    @cached_property
    def turn_of(self) -> dict[int, asyncpg.Record]:
        """The last turn that each comment asked for."""
        return {turn["source_id"]: turn for turn in self.turns}

    def first_starts(self) -> dict[str, float]:
        """When an agent first began with each request."""
        starts: dict[str, float] = {}
        for line in self.lines:
            if line["event"] == "start":
                starts.setdefault(line["tag"], line["at"])
        return starts

    def commits_of(self, tag: str) -> list[str]:
        """Return what the last agent that had this request committed."""
        mine = [line for line in self.lines if line.get("tag") == tag]
        last = max((n for n, line in enumerate(mine) if line["event"] == "start"), default=0)
        return [line["sha"] for line in mine[last:] if line["event"] == "commit"]

    def bot_comments(self, thread: Issue) -> list[Comment]:
        return thread.comments_by(self.stream.here.github.bot)


def finals_of(thread: Issue, bot: User) -> dict[int, list[Comment]]:
    """Return the bot's final answers on the thread, by the id of the comment that asked."""
    found: dict[int, list[Comment]] = defaultdict(list)
    for comment in thread.comments_by(bot):
        for asked in answered_by(comment.body):
            found[asked].append(comment)
    return found


def answered_by(body: str) -> list[int]:
    """Return the ids of the comments that asked for this final answer: a request and the messages to its agent.

    None for any other text of the bot.
    """
    links = list(_LINK.finditer(body))
    if not links or body.startswith(PROGRESS) or _MOVED in body or _MENDS in body:
        return []
    last = max((n for n, link in enumerate(links) if link[1] == "request"), default=len(links))
    return [int(link[2]) for link in links[last:]]


def _shown(thread: Issue, bot: User) -> dict[int, datetime]:
    """Return when each first final text stood on the thread, by the id of the comment that asked.

    Not by GitHub's events: those may be lost, late and doubled.
    """
    times: dict[int, datetime] = {}
    for comment in thread.comments_by(bot):
        for one in comment.revisions or [Revision(comment.created_at, bot, comment.original)]:
            for asked in answered_by(one.body):
                times[asked] = min(one.at, times.get(asked, one.at))
    return times


def unanswered(stream: Stream) -> list[Asked]:
    """Return the requests without a final answer."""
    bot = stream.here.github.bot
    finals = {thread: finals_of(thread, bot) for thread in stream.threads}
    return [asked for asked in stream.requests if not finals[asked.thread].get(asked.comment.id)]


async def violations(evidence: Evidence) -> list[Violation]:
    """Return all that is wrong."""
    return [
        *answers(evidence),
        *markers(evidence),
        *order(evidence),
        *together(evidence),
        *await work_kept(evidence),
        *await branches(evidence),
        *leaks(evidence),
        *attempts(evidence),
    ]


async def stuck(dsn: str) -> list[Violation]:
    """Return what is left in the rows of processes that still run; their end lets go what they hold."""
    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        return [Violation(STUCK, row[0]) for row in await connection.fetch(STUCK_ROWS)]
    finally:
        await connection.close()


def answers(evidence: Evidence) -> Iterable[Violation]:
    """Exactly one final answer for each request, and one reply for each `/help`."""
    stream = evidence.stream
    bot = stream.here.github.bot
    for thread in stream.threads:
        finals = finals_of(thread, bot)
        for asked in (one for one in stream.requests if one.thread is thread):
            match finals.get(asked.comment.id, []):
                case []:
                    turn = evidence.turn_of.get(asked.comment.id)
                    yield Violation(LOST, f"{asked.tag} on {thread!r} has no answer; its turn: {turn and dict(turn)}")
                case [_]:
                    pass
                case more:
                    yield Violation(DOUBLED, f"{asked.tag} on {thread!r} has {len(more)} answers: {more}")
        shown = sum("Mention `@" in comment.body for comment in evidence.bot_comments(thread))
        wanted = sum(one.thread is thread for one in stream.helps)
        if shown != wanted:
            yield Violation(LOST if shown < wanted else DOUBLED, f"{wanted} /help on {thread!r}, {shown} replies")
    for turn in evidence.all_turns:
        if turn["state"] == "failed" and "agent" not in turn["reason"].lower():
            yield Violation(FAILED, f"turn {turn['id']} ({turn['verb']}): {turn['reason']}")
    for turn in evidence.turns:
        # Nothing else that is asked here deserves it: a request right before a merge and the end of its branch.
        asks_agent = turn["verb"] in ("work", "plan", "review")
        if asks_agent and turn["state"] == "refused" and _GONE not in turn["reason"]:
            yield Violation(LOST, f"turn {turn['id']} was refused: {turn['reason']}")
    asked_twice = Counter(turn["source_id"] for turn in evidence.turns)
    for comment, times in asked_twice.items():
        if times > 1:
            yield Violation(DOUBLED, f"comment {comment} made {times} turns")


def attempts(evidence: Evidence) -> Iterable[Violation]:
    """One attempt at most for each head whose checks fail, and not too many after a person's request."""
    heads = Counter(turn["mends"] for turn in evidence.all_turns if turn["mends"] is not None)
    for head, times in heads.items():
        if times > 1:
            yield Violation(MENDED_TWICE, f"the checks of {head} made {times} turns")
    since = Counter[int]()
    for turn in evidence.all_turns:
        thread = turn["conversation_id"]
        since[thread] = 0 if turn["mends"] is None else since[thread] + 1
        if since[thread] > MOST_ATTEMPTS:
            yield Violation(RUNAWAY, f"turn {turn['id']} is attempt {since[thread]} in its thread")


def markers(evidence: Evidence) -> Iterable[Violation]:
    """No comment was posted twice: each marker is on one comment."""
    seen = Counter(
        (thread.repository.full_name, marker)
        for thread in evidence.stream.threads
        for comment in evidence.bot_comments(thread)
        for marker in _MARKER.findall(comment.body)
    )
    for (repository, marker), times in seen.items():
        if times > 1:
            yield Violation(DOUBLED, f"{times} comments in {repository} have the marker {marker}")


def order(evidence: Evidence) -> Iterable[Violation]:
    """Within a thread requests are queued as they came in, begun as they are queued, and answered in that order."""
    stream, starts = evidence.stream, evidence.first_starts()
    accepted = _accepted_at(stream)
    bot = stream.here.github.bot
    for thread in stream.threads:
        asked = [one for one in stream.requests if one.thread is thread and one.comment.id in evidence.turn_of]
        asked.sort(key=lambda one: evidence.turn_of[one.comment.id]["id"])
        finals, shown = finals_of(thread, bot), _shown(thread, bot)
        for before, after in pairwise(asked):
            pair = f"{before.tag} before {after.tag} on {thread!r}"
            if before.tag in starts and after.tag in starts and starts[before.tag] > starts[after.tag]:
                yield Violation(ORDER, f"{pair}: their agents began in another order")
            first, second = finals.get(before.comment.id), finals.get(after.comment.id)
            if first and second and first[0].id > second[0].id:
                yield Violation(ORDER, f"{pair}: their answers stand in another order")
            # What waits is stopped at once, before what runs.
            stopped = "stopped" in [evidence.turn_of[one.comment.id]["state"] for one in (before, after)]
            if first and second and not stopped and shown[before.comment.id] > shown[after.comment.id]:
                yield Violation(ORDER, f"{pair}: their answers came in another order")
        for early in asked:
            for late in asked:
                taken = accepted.get(early.comment.id)
                was_first = taken is not None and taken < late.comment.created_at
                if was_first and evidence.turn_of[early.comment.id]["id"] > evidence.turn_of[late.comment.id]["id"]:
                    yield Violation(ORDER, f"{early.tag} came in before {late.tag} was written, but waits after it")


def taken_from_the_living(lives: Iterable[tuple[BotProcess, float]]) -> Iterable[Violation]:
    """A turn is taken over only from a process that has ended; `lives` are processes of one node with their ends."""
    runs: list[tuple[float, str, object, float, int]] = []
    for process, ended in lives:
        for event in (
            *("turn-started", "turn-ended", "turn-requeued-until", "turn-requeued"),
            *("turn-cut-off", "turn-interrupted"),
        ):
            for line in process.events(event):
                at = datetime.fromisoformat(str(line["timestamp"])).timestamp()
                runs.append((at, event, line.get("turn"), ended, process.pid))
    running: dict[object, tuple[float, int]] = {}
    for at, event, turn, ended, pid in sorted(runs):
        match event:
            case "turn-started":
                running[turn] = ended, pid
            case "turn-cut-off" | "turn-interrupted" if turn in running and running[turn][0] > at + NOTICED_SECONDS:
                yield Violation(TOGETHER, f"turn {turn} was taken from process {running[turn][1]}, which lived")
            case _:
                running.pop(turn, None)


def interrupted_by(lives: Iterable[tuple[BotProcess, float]], turns: Iterable[asyncpg.Record]) -> Counter[str]:
    """Count the turns that ended `interrupted` by how their processes ended: `killed`, or they `lived` all the time."""
    starts: dict[object, list[str]] = {turn["id"]: [] for turn in turns if turn["state"] == "interrupted"}
    for process, _ in lives:
        for line in process.events("turn-started"):
            if line.get("turn") in starts:
                starts[line["turn"]].append("killed" if process.is_killed else "lived")
    return Counter(", ".join(sorted(ends)) for ends in starts.values())


def _accepted_at(stream: Stream) -> dict[int, Any]:
    """Return when GitHub had the first 202 for each comment."""
    accepted: dict[int, Any] = {}
    for delivery in stream.here.github.deliveries:
        if delivery.event == "issue_comment" and delivery.action == "created" and delivery.succeeded:
            at = delivery.delivered_at + timedelta(seconds=delivery.duration_seconds)
            accepted.setdefault(delivery.payload["comment"]["id"], at)
    return accepted


def together(evidence: Evidence) -> Iterable[Violation]:
    """No two agents at work in one directory."""
    for line in evidence.lines:
        if line["event"] == "not-alone":
            yield Violation(TOGETHER, f"an agent began in {line['cwd']} beside another")


async def work_kept(evidence: Evidence) -> list[Violation]:
    """Every file and commit that an agent said it made is on GitHub, in a clone's refs or in a kept directory."""
    found: list[Violation] = []
    written: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in evidence.lines:
        if line["event"] in ("wrote", "commit"):
            written["/".join(Path(line["cwd"]).parts[-3:-1])].append(line)
    for repository in evidence.stream.repositories:
        lines = written.get(repository.full_name, [])
        clones = [path / "repos" / f"{repository.full_name}.git" for path in evidence.data_dirs.values()]
        blobs, commits = await _contents([repository.git.path, *(clone for clone in clones if clone.exists())])
        for directory in evidence.data_dirs.values():
            for top in (directory / "worktrees" / repository.full_name, directory / "kept"):
                blobs |= {(file.name, _blob(file.read_bytes())) for file in top.rglob("*.txt") if file.is_file()}
        for line in lines:
            if line["event"] == "commit" and line["sha"] not in commits:
                found.append(Violation(COMMITS, f"commit {line['sha']} made in {line['cwd']} is nowhere"))
            if line["event"] == "wrote" and line["mode"] == "w" and not _is_kept(line, blobs):
                found.append(Violation(COMMITS, f"{line['name']} written in {line['cwd']} is nowhere"))
    return found


def _is_kept(line: dict[str, Any], blobs: set[tuple[str, str]]) -> bool:
    return (line["name"], _blob(line["text"].encode())) in blobs


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


async def branches(evidence: Evidence) -> list[Violation]:
    """The bot moves branches on GitHub forwards only; what a turn that is `done` committed is on one that it named."""
    found: list[Violation] = []
    stream = evidence.stream
    bot = stream.here.github.bot
    for repository in stream.repositories:
        history = await History.of(repository)
        last: dict[str, str | None] = {}
        for push in repository.pushes:
            what = f"{push.ref} in {repository.full_name} went from {push.before} to {push.after}"
            if last.get(push.ref, push.before) != push.before:
                found.append(Violation(FORCED, f"{what}, but was at {last[push.ref]}"))
            is_forward = push.after is not None and history.has(push.after, push.before)
            if push.pusher.id == bot.id and not is_forward:
                found.append(Violation(FORCED, what))
            last[push.ref] = push.after
        for asked in (one for one in stream.requests if one.thread.repository is repository):
            turn, finals = evidence.turn_of.get(asked.comment.id), finals_of(asked.thread, bot)[asked.comment.id]
            kept = any(_KEPT in final.body for final in finals)  # somewhere: see `work_kept`
            if turn is not None and turn["state"] == "done" and finals and not kept:
                tips = history.tips_named(finals[0].body)
                found += [
                    Violation(UNPUBLISHED, f"commit {sha} of {asked.tag} on {asked.thread!r} is not where it says")
                    for sha in evidence.commits_of(asked.tag)
                    if not any(history.has(tip, sha) for tip in tips)
                ]
    return found


@dataclass(frozen=True, slots=True)
class History:
    """All commits that branches of a repository on GitHub ever had, with their parents."""

    pushes: Sequence[Push]
    parents: dict[str, list[str]]

    @classmethod
    async def of(cls, repository: Repository) -> "History":
        tips = {push.after for push in repository.pushes if push.after is not None}
        lines = (await git(repository.git.path, "rev-list", "--parents", *sorted(tips))).splitlines()
        return cls(repository.pushes, {line.split()[0]: line.split()[1:] for line in lines})

    def has(self, tip: str, sha: str | None) -> bool:
        """Return whether `tip` contains the commit; every tip contains None."""
        if sha is None:
            return True
        seen, waiting = set[str](), [tip]
        while waiting and sha not in seen:
            seen.add(one := waiting.pop())
            waiting += (parent for parent in self.parents[one] if parent not in seen)
        return sha in seen

    def tips_named(self, text: str) -> list[str]:
        """Return all commits at which branches were that the text names."""
        return [
            push.after for push in self.pushes if push.after and f"`{push.ref.removeprefix('refs/heads/')}`" in text
        ]


async def _contents(stores: Iterable[Path]) -> tuple[set[tuple[str, str]], set[str]]:
    """Return (name, blob) of all files in all commits, and all commits, that refs and worktrees' HEADs reach.

    A sandbox has refs and objects of its own.
    """
    blobs, commits = set[tuple[str, str]](), set[str]()
    for store in stores:
        sandboxed = list(store.parents[2].glob("private/*/"))
        heads = [*store.glob("worktrees/*/HEAD"), *(one / "state" / "HEAD" for one in sandboxed)]
        refs = [ref for one in sandboxed for ref in (one / "refs" / "heads").rglob("*") if ref.is_file()]
        told = {one.read_text().strip() for one in (*heads, *refs) if one.exists()}
        objects = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(str(one / "common" / "objects") for one in sandboxed)}
        own = [sha for sha in told if _SHA.fullmatch(sha) and await _has(store, sha, objects)]
        commits |= set((await git(store, "rev-list", "--all", *own, environment=objects)).split())
        for line in (await git(store, "rev-list", "--all", "--objects", *own, environment=objects)).splitlines():
            sha, _, path = line.partition(" ")
            if path:
                blobs.add((Path(path).name, sha))
    return blobs, commits


async def _has(store: Path, sha: str, environment: dict[str, str]) -> bool:
    """Return whether the whole history of a commit is here: a sandbox is that of one clone only."""
    command = ("rev-list", "--objects", "--quiet", sha)
    return await (await _start(store, command, environment)).wait() == 0


async def git(store: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    process = await _start(store, arguments, environment or {})
    said, _ = await process.communicate()
    assert process.returncode == 0, arguments
    return said.decode()


async def _start(store: Path, arguments: Sequence[str], environment: dict[str, str]) -> asyncio.subprocess.Process:
    command = ("git", f"--git-dir={store}", *arguments)
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(*command, env=os.environ | environment, stdout=pipe, stderr=null)


def leaks(evidence: Evidence) -> Iterable[Violation]:
    """Each ready worktree has one directory, metadata and entry of git, and there are no others."""
    for name, data_dir in evidence.data_dirs.items():
        rows = [row for row in evidence.worktrees if row["node_name"] == name]
        ready = {str(row["path"]) for row in rows if row["state"] == "ready"}
        unstarted = {str(row["path"]) for row in rows if row["state"] == "reserved"}
        top = data_dir / "worktrees"
        directories = {str(one.relative_to(data_dir)) for one in top.glob("*/*/*") if one.is_dir()}
        described = {str(one.relative_to(data_dir).with_suffix("")) for one in top.glob("*/*/*.json")}
        entries = {Path(one.read_text().strip()).parent for one in data_dir.glob("repos/*/*.git/worktrees/*/gitdir")}
        registered = {str(one.relative_to(data_dir)) for one in entries if one.is_relative_to(top)}
        for what, found in (("directory", directories), ("metadata", described), ("entry of git", registered)):
            for path in ready - found:
                yield Violation(LEAKED, f"{name}: the ready worktree {path} has no {what}")
            for path in found - ready - unstarted:
                yield Violation(LEAKED, f"{name}: {path} has a {what} and no row")
