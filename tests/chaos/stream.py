"""What people do during a round: requests and commands on issues and pull requests, delivered late, doubled and again.

What is asked while an agent works becomes a message to it where the round's agent takes those. They also push to
branches, their own and the bot's, merge pull requests, and delete branches.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from bot.simulated.github.errors import RefusedError
from bot.simulated.github.model import Comment, Issue, Pull, Repository
from tests.support.processes import Deployment

PAUSE_SECONDS = (0.05, 0.6)
MOST_WAITING = 7
COMMANDS = ("/approve", "/undo", "/update", "/review", "/retry")
ACTS = ("ask", "pull", "push", "close", "reset", "open", "help", "merge", "stop", "restore", "twice", "plan", *COMMANDS)
WEIGHTS = (50, 12, 7, 6, 6, 5, 4, 4, 2, 2, 12, 6, 8, 6, 6, 6, 4)
"""How often people do what."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the agent, or a command."""

    tag: str
    comment: Comment
    verb: str = "work"

    @property
    def thread(self) -> Issue:
        return self.comment.thread


@dataclass(slots=True)
class Stream:
    """The threads, and all that was asked so far."""

    here: Deployment
    rng: random.Random
    repositories: list[Repository]
    threads: list[Issue] = field(default_factory=list)
    requests: list[Asked] = field(default_factory=list)
    """What the agent is to do, or to plan."""
    commands: list[Asked] = field(default_factory=list)
    """What is answered by a turn, or at once where there is nothing to do."""
    helps: list[Asked] = field(default_factory=list)
    may_stop: set[Issue] = field(default_factory=set)
    """Threads on which something was stopped or closed, which ends requests out of their turn."""
    gone: set[Issue] = field(default_factory=set)
    """Pull requests whose branch was deleted: no request can be served there."""
    pushes: int = 0

    async def open_threads(self, each: int) -> None:
        """Open this many threads in each repository."""
        for repository in self.repositories:
            for _ in range(each):
                self.threads.append(await self.here.maria.open_issue(repository, "Something to do"))

    async def ask(self, thread: Issue) -> None:
        """Ask the agent for one of several kinds of work, each of which leaves a file of its own."""
        number = len(self.requests) + 1
        tag = f"R-{number}"
        lines = [f"write r{number}.txt: {tag}"]
        match self.rng.choice(("quick", "quick", "quick", "commit", "commit", "commit", "slow", "slow", "long")):
            case "quick":
                lines.append(f"append notes.txt: note of {tag}")
            case "commit":
                lines += [f"commit Change {number}", f"append notes.txt: note of {tag}"]
            case "slow":
                lines += [f"commit Change {number}", f"pause {self.rng.uniform(0.1, 0.8):.2f}"]
                lines += [f"write later{number}.txt: later {tag}"]
            case "long":
                lines.append(f"pause {self.rng.uniform(0.5, 2):.2f}")
        lines += [f"mend append notes.txt: mended after {tag}", f"say {tag} is done."]
        text = "\n".join((f"@{self.here.github.bot.login} {lines[0]}", *lines[1:]))
        self.requests.append(Asked(tag, await self.here.maria.comment(thread, text)))

    async def plan(self, thread: Issue) -> None:
        """Ask for a plan, which the agent can carry out word by word."""
        number = len(self.requests) + 1
        tag = f"R-{number}"
        text = f"/plan\nsay write r{number}.txt: {tag}"
        self.requests.append(Asked(tag, await self.here.maria.comment(thread, text), "plan"))

    async def command(self, thread: Issue, command: str) -> None:
        """Write a command. A review says its tag."""
        tag = f"C-{len(self.commands) + 1}"
        text = f'{command}\nout review.json: {{"summary": "{tag} is read.", "comments": []}}'
        said = await self.here.maria.comment(thread, text if command == "/review" else command)
        self.commands.append(Asked(tag, said, command.removeprefix("/")))

    async def run(self, enough: asyncio.Event, waiting: Callable[[], int]) -> None:
        """Write until `enough`, while not too many requests wait; deliver what is written as badly as GitHub may."""
        faults, rng = self.here.github.faults, self.rng
        while not enough.is_set():
            await asyncio.sleep(rng.uniform(*PAUSE_SECONDS))
            if waiting() >= MOST_WAITING:
                continue
            thread = rng.choice([thread for thread in self.threads if thread not in self.gone])
            match rng.choices(("doubled", "held", "as it is"), (15, 10, 75))[0]:
                case "doubled":
                    faults.double_webhooks("issue_comment", "created")
                case "held":
                    faults.hold_webhooks("issue_comment", "created")
                case _:
                    pass
            with suppress(RefusedError):  # as the page shows it: no commits, a conflict, a second pull request
                await self._act(rng.choices(ACTS, WEIGHTS)[0], thread)
            if rng.random() < 0.2:
                faults.release()
            if rng.random() < 0.15 and self.here.github.deliveries:
                again = rng.choice(self.here.github.deliveries[-20:])
                self.here.maria.acts.webhooks.redeliver(again.guid)

    async def _act(self, kind: str, thread: Issue) -> None:
        """Do one thing. Raises RefusedError where GitHub does not."""
        maria = self.here.maria
        match kind:
            case "open":
                thread = await maria.open_issue(thread.repository, "Something more")
                self.threads.append(thread)
                await self.ask(thread)
            case "help":
                self.helps.append(Asked("", await maria.comment(thread, "/help")))
            case "reset":
                await maria.comment(thread, "/worktree reset")
            case "restore":
                await maria.comment(thread, "/worktree restore")
            case "stop":
                self.may_stop.add(thread)
                await maria.comment(thread, "/stop")
            case "close" if thread.state == "open":
                self.may_stop.add(thread)
                await maria.close(thread)
            case "close":
                await maria.reopen(thread)
            case "twice":
                await self.ask(thread)
                await self.ask(thread)
            case "plan":
                await self.plan(thread)
            case "/review" if not isinstance(thread, Pull):
                pulls = [one for one in self.threads if isinstance(one, Pull) and one not in self.gone]
                await self.command(self.rng.choice(pulls or [thread]), kind)
            case _ if kind in COMMANDS:
                await self.command(thread, kind)
            case "pull":
                await self._open_pull(thread)
            case "push":
                await self._push(thread.repository)
            case "merge":
                await self._merge(thread.repository)
            case _:
                await self.ask(thread)

    async def _open_pull(self, thread: Issue) -> None:
        """Open a pull request from the issue's branch or from one of a person, which may close the issue; ask there."""
        repository, branch = thread.repository, f"threadtree/issue-{thread.number}"
        if self.rng.random() < 0.4 or branch not in await repository.git.branches():
            branch = f"feature-{self.pushes}"
            await self._commit(repository, branch)
        closes = not isinstance(thread, Pull) and self.rng.random() < 0.7
        body = f"Closes #{thread.number}" if closes else None
        pull = await self.here.maria.open_pull(repository, head=branch, title="Something finished", body=body)
        self.threads.append(pull)
        await self.ask(pull)

    async def open_pulls(self) -> None:
        """Open a pull request from the branch of each thread that has one."""
        for thread in self.threads:
            branch = f"threadtree/issue-{thread.number}"
            if branch in await thread.repository.git.branches():
                await self.here.maria.open_pull(thread.repository, head=branch, title="Something begun")

    async def run_checks(self, enough: asyncio.Event) -> None:
        """Let checks of the bot's branches fail, or pass, until `enough`; GitHub may tell it twice, or late."""
        rng = random.Random(self.rng.random())
        while not enough.is_set():
            await asyncio.sleep(rng.uniform(*PAUSE_SECONDS))
            pulls = [one for repository in self.repositories for one in repository.pulls if one.state == "open"]
            own = [one for one in pulls if one.head_ref.startswith("threadtree/")]
            if not own:
                continue
            if rng.random() < 0.3:
                self.here.github.faults.double_webhooks("check_suite", "completed")
            pull = rng.choice(own)
            ends = {"tests": rng.choice(("failure", "failure", "failure", "success", ""))}
            self.here.github.end_checks(pull.repository, pull.head_sha, ends)

    async def _push(self, repository: Repository) -> None:
        """Push to a branch on which others work."""
        branches = sorted(await repository.git.branches())
        await self._commit(repository, self.rng.choice(branches))

    async def _commit(self, repository: Repository, branch: str) -> None:
        self.pushes += 1
        # Agents write notes too: then the two sides cannot be merged by themselves.
        name = "notes.txt" if self.rng.random() < 0.2 else f"p{self.pushes}.txt"
        await self.here.maria.push(repository, branch, {name: f"by hand: {self.pushes}\n"}, f"By hand {self.pushes}")

    async def _merge(self, repository: Repository) -> None:
        """Merge a pull request, or squash it; its branch may go."""
        pulls = [pull for pull in repository.pulls if pull.state == "open"]
        if not pulls:
            return
        pull = self.rng.choice(pulls)
        self.may_stop |= {pull, *self.here.maria.acts.closing_issues(pull)}
        await self.here.maria.merge(pull, self.rng.choice(("merge", "squash")))
        if self.rng.random() < 0.5:
            self.gone |= {one for one in repository.pulls if one.head_ref == pull.head_ref}
            self.may_stop |= self.gone
            await self.here.maria.delete_branch(repository, pull.head_ref)
