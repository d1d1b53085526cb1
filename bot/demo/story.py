"""The main job, told step by step: a mention becomes an answer, and everything around it is cleaned up in the end."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from bot import sentences
from bot.demo.pair import Pair
from bot.demo.report import Report
from bot.reply.marker import turn_marker
from bot.simulated.github.model import Comment, Issue, Pull, Repository
from bot.simulated.github.person import Person

PATIENCE_SECONDS = 30.0
GATE = "go"
"""The file the scripted agent waits for in the first turn, so that there is time to see it at work."""


class StoryBrokeError(Exception):
    """Something the story waits for did not happen; the report says what."""


class Story:
    """The demo's story. Each method is one step; all share one repository, one issue and one pull request."""

    def __init__(self, pair: Pair, report: Report) -> None:
        self._pair = pair
        self._github = pair.github
        self._report = report
        self._mention = f"@{pair.github.bot.login}"
        self._repository: Repository
        self._maria: Person
        self._issue: Issue
        self._pull: Pull
        self._read: set[int] = set()

    async def tell(self) -> None:
        """All steps in order. Raises StoryBrokeError at the first thing that never happens."""
        await self._an_issue()
        await self._a_mention_becomes_an_answer()
        await self._a_second_mention_resumes_the_session()
        await self._reset_context_begins_afresh()
        await self._a_pull_request_shares_the_worktree()
        await self._an_outsider_gets_nothing()
        await self._a_lost_worktree_is_made_again()
        await self._merging_cleans_up()

    async def _an_issue(self) -> None:
        self._report.step("A repository with an issue")
        files = {"README.md": "# The shop\n", ".gitignore": f"/{GATE}\n"}
        self._repository = await self._github.create_repository("acme/shop", files)
        self._maria = self._github.person("maria")
        self._repository.allow(self._maria, "maintain")
        self._issue = await self._maria.open_issue(self._repository, "Greet the customers", "The shop says nothing.")
        self._report.did("acme/shop has issue #1, and maria may write")
        await self._github.settled()
        answers = [delivery.status_code for delivery in self._github.deliveries]
        self._report.check("every webhook so far was answered 202", set(answers) == {202}, answers)

    async def _a_mention_becomes_an_answer(self) -> None:
        self._report.step("A maintainer mentions the bot")
        asked = await self._says(
            self._maria,
            self._issue,
            f"{self._mention} write hello.txt: Welcome!\nplan Find | Write\nremember blue\nwait {GATE}",
        )
        await self._until("👀 on the comment", lambda: [reaction.content for reaction in asked.reactions] == ["eyes"])
        await self._until("a tracking comment, while the agent works", lambda: bool(self._unread(self._issue)))
        await self._until_rows("the worktree is ready", "select 1 from worktrees where state = 'ready'")
        await asyncio.to_thread((Path((await self._worktree())["path"]) / GATE).touch)
        tracking = await self._answer(self._issue, turn=1)
        self._report.check(
            "the same comment became the answer, by edits",
            len(self._issue.comments_by(self._github.bot)) == 1 and len(tracking.edits) >= 1,
            f"{len(self._issue.comments_by(self._github.bot))} comments, {len(tracking.edits)} edits",
        )
        worktree = await self._worktree()
        self._report.check("a worktree on threadtree/issue-1", worktree["branch"] == "threadtree/issue-1", worktree)
        self._report.check("it is on the disk", (Path(worktree["path"]) / "hello.txt").is_file(), worktree["path"])
        log = await self._git("log", "-1", "--format=%an%n%b", "threadtree/issue-1")
        self._report.check(
            "GitHub has the commit: by the bot, co-authored by maria",
            log.startswith(self._github.bot.login) and "Co-authored-by: maria" in log,
            log,
        )
        pushed = await self._git("show", "threadtree/issue-1:hello.txt")
        self._report.check("with the file the agent wrote", pushed.strip() == "Welcome!", pushed)

    async def _a_second_mention_resumes_the_session(self) -> None:
        self._report.step("A second mention goes on where the first ended")
        await self._says(self._maria, self._issue, f"{self._mention} recall")
        answer = await self._answer(self._issue, turn=2)
        self._report.check("the agent remembers", "I remember: blue" in answer.body, answer.body)
        sessions = await self._rows("select distinct session_id from turns")
        self._report.check("both turns ran in one session", len(sessions) == 1, sessions)

    async def _reset_context_begins_afresh(self) -> None:
        self._report.step("/reset-context")
        await self._says(self._maria, self._issue, f"{self._mention} /reset-context")
        reply = await self._new_comment(self._issue)
        self._report.check("answered with its exact sentence", sentences.CONTEXT_RESET in reply.body, reply.body)
        before = await self._worktree()
        await self._says(self._maria, self._issue, f"{self._mention} recall")
        answer = await self._answer(self._issue, turn=3)
        self._report.check("the next turn starts fresh", "I remember: nothing" in answer.body, answer.body)
        self._report.check("in the same worktree", (await self._worktree())["id"] == before["id"])

    async def _a_pull_request_shares_the_worktree(self) -> None:
        self._report.step("A pull request that fixes the issue")
        self._pull = await self._maria.open_pull(
            self._repository, head="threadtree/issue-1", title="Greet the customers", body="Fixes #1"
        )
        self._report.did(f"maria opened #{self._pull.number} from threadtree/issue-1: Fixes #1")
        await self._says(self._maria, self._pull, f"{self._mention} append hello.txt: Come in.")
        answer = await self._answer(self._pull, turn=4)
        self._report.check(
            "the reply says whose worktree it is", sentences.in_worktree_of(1) in answer.body, answer.body
        )
        sharing = await self._rows(
            "select number from conversations where worktree_id = $1", (await self._worktree())["id"]
        )
        self._report.check("issue and pull request share one worktree", len(sharing) == 2, sharing)
        head = await self._git("rev-parse", "threadtree/issue-1")
        self._report.check("the pull request has the new commit", self._pull.head_sha == head.strip(), head)

    async def _an_outsider_gets_nothing(self) -> None:
        self._report.step("An outsider mentions the bot")
        mallory = self._github.person("mallory")
        asked = await self._says(mallory, self._issue, f"{self._mention} write pwned.txt: ha")
        await self._until(
            "😕 on the comment", lambda: [reaction.content for reaction in asked.reactions] == ["confused"]
        )
        await self._github.settled()
        turns = await self._rows("select id from turns where requested_by = 'mallory'")
        unread = [comment.body for comment in self._unread(self._issue)]
        self._report.check("and nothing else: no turn, no comment", not turns and not unread, [turns, unread])

    async def _a_lost_worktree_is_made_again(self) -> None:
        self._report.step("The worktree's directory is deleted by hand")
        worktree = await self._worktree()
        shutil.rmtree(worktree["path"])
        self._report.did(f"removed {worktree['path']}")
        await self._says(self._maria, self._issue, f"{self._mention} append hello.txt: Stay.")
        answer = await self._answer(self._issue, turn=5)
        words = sentences.worktree_remade("threadtree/issue-1")
        self._report.check("the reply says that it was made again", words in answer.body, answer.body)
        self._report.check("at the same path", (Path(worktree["path"]) / "hello.txt").is_file())
        pushed = (await self._git("show", "threadtree/issue-1:hello.txt")).split("\n")
        self._report.check("with everything that was there", pushed[:3] == ["Welcome!", "Come in.", "Stay."], pushed)
        ended = await self._rows("select 1 from sessions where end_reason = 'worktree-missing'")
        self._report.check("the old session ended", len(ended) == 1, ended)

    async def _merging_cleans_up(self) -> None:
        self._report.step("The pull request is merged, and the issue closes with it")
        worktree = await self._worktree()
        await self._maria.merge(self._pull)
        self._report.check("GitHub closed the issue", self._issue.state == "closed", self._issue.state)
        await self._until_rows("the worktree is removed", "select 1 from worktrees where state = 'removed'")
        self._report.check("its directory is gone", _is_gone(worktree["path"]), worktree["path"])
        active = await self._rows("select 1 from sessions where active")
        reasons = await self._rows("select distinct end_reason from sessions where end_reason = 'conversation-closed'")
        self._report.check("every session ended, the last by the close", not active and len(reasons) == 1, active)
        closed = await self._rows("select state from conversations where state <> 'closed' or worktree_id is not null")
        self._report.check("both conversations are closed and refer to no worktree", not closed, closed)
        states = await self._rows("select state, count(*) from turns group by state")
        self._report.check("every turn is done", [tuple(row) for row in states] == [("done", 5)], states)
        files = await self._git("ls-tree", "--name-only", "main")
        self._report.check("the work is on main", "hello.txt" in files, files)
        await self._github.settled()
        bad = [delivery.status_code for delivery in self._github.deliveries if delivery.status_code != 202]
        self._report.check(f"all {len(self._github.deliveries)} webhooks were answered 202", not bad, bad)

    async def _says(self, person: Person, thread: Issue, words: str) -> Comment:
        comment = await person.comment(thread, words)
        self._report.quote(f"#{thread.number} {person.login}", words)
        return comment

    def _unread(self, thread: Issue) -> list[Comment]:
        return [comment for comment in thread.comments_by(self._github.bot) if comment.id not in self._read]

    async def _new_comment(self, thread: Issue) -> Comment:
        await self._until("the bot answers", lambda: bool(self._unread(thread)))
        comment = self._unread(thread)[0]
        self._read.add(comment.id)
        self._report.quote(f"#{thread.number} {self._github.bot.login}", comment.body)
        return comment

    async def _answer(self, thread: Issue, turn: int) -> Comment:
        """The turn's tracking comment once GitHub shows what its end wished for."""
        done = "select 1 from outbox where turn_id = $1 and part = 1 and urgency = 1 and sent_version = version"
        await self._until_rows("the answer is there", done, turn)
        marker = turn_marker(turn, 1)
        comment = next(comment for comment in thread.comments if comment.body.endswith(marker))
        self._read.add(comment.id)
        self._report.quote(f"#{thread.number} {self._github.bot.login}", comment.body)
        return comment

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            await self._github.wait_for(holds, PATIENCE_SECONDS)
        except TimeoutError as error:
            self._report.check(what, False, f"not within {PATIENCE_SECONDS:.0f} s")
            raise StoryBrokeError(what) from error
        self._report.check(what, True)

    async def _until_rows(self, what: str, sql: str, *arguments: object) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not await self._rows(sql, *arguments):
            if asyncio.get_running_loop().time() > deadline:
                self._report.check(what, False, f"not within {PATIENCE_SECONDS:.0f} s")
                raise StoryBrokeError(what)
            await asyncio.sleep(0.1)
        self._report.check(what, True)

    async def _worktree(self) -> dict[str, Any]:
        rows = await self._rows("select id, path, branch, state from worktrees where state = 'ready'")
        return dict(rows[0]) if rows else {"id": None, "path": "/nonexistent", "branch": None, "state": None}

    async def _rows(self, sql: str, *arguments: object) -> list[Any]:
        connection = await asyncpg.connect(self._pair.dsn)
        try:
            return list(await connection.fetch(sql, *arguments))
        finally:
            await connection.close()

    async def _git(self, *args: str) -> str:
        """What GitHub's own repository answers."""
        return await self._repository.git.run(*args)


def _is_gone(path: str) -> bool:
    return not os.path.lexists(path)
