"""What people write during a round: requests and commands on several threads, delivered late, doubled and again."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bot.simulated.github.model import Comment, Issue, Repository
from tests.support.processes import Deployment

PAUSE_SECONDS = (0.05, 0.6)
MOST_WAITING = 7


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the agent, or one `/help` (then `tag` is empty)."""

    tag: str
    comment: Comment

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
    helps: list[Asked] = field(default_factory=list)
    may_stop: set[Issue] = field(default_factory=set)
    """Threads on which something was stopped or closed, which ends requests out of their turn."""

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
        lines.append(f"say {tag} is done.")
        text = "\n".join((f"@{self.here.github.bot.login} {lines[0]}", *lines[1:]))
        self.requests.append(Asked(tag, await self.here.maria.comment(thread, text)))

    async def run(self, enough: asyncio.Event, waiting: Callable[[], int]) -> None:
        """Write until `enough`, while not too many requests wait; deliver what is written as badly as GitHub may."""
        faults, rng = self.here.github.faults, self.rng
        while not enough.is_set():
            await asyncio.sleep(rng.uniform(*PAUSE_SECONDS))
            if waiting() >= MOST_WAITING:
                continue
            thread = rng.choice(self.threads)
            match rng.choices(("doubled", "held", "as it is"), (15, 10, 75))[0]:
                case "doubled":
                    faults.double_webhooks("issue_comment", "created")
                case "held":
                    faults.hold_webhooks("issue_comment", "created")
                case _:
                    pass
            match rng.choices(("ask", "open", "help", "reset", "close", "stop", "restore"), (74, 6, 4, 6, 6, 2, 2))[0]:
                case "open":
                    thread = await self.here.maria.open_issue(thread.repository, "Something more")
                    self.threads.append(thread)
                    await self.ask(thread)
                case "help":
                    self.helps.append(Asked("", await self.here.maria.comment(thread, "/help")))
                case "reset":
                    await self.here.maria.comment(thread, "/worktree reset")
                case "restore":
                    await self.here.maria.comment(thread, "/worktree restore")
                case "stop":
                    self.may_stop.add(thread)
                    await self.here.maria.comment(thread, "/stop")
                case "close" if thread.state == "open":
                    self.may_stop.add(thread)
                    await self.here.maria.close(thread)
                case "close":
                    await self.here.maria.reopen(thread)
                case _:
                    await self.ask(thread)
            if rng.random() < 0.2:
                faults.release()
            if rng.random() < 0.15 and self.here.github.deliveries:
                again = rng.choice(self.here.github.deliveries[-20:])
                self.here.maria.acts.webhooks.redeliver(again.guid)
