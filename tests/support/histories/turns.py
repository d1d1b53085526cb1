"""Rules: people ask in threads, turns run there, workers die."""

import asyncio
import shutil
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from bot.turn.choose_worktree import PullRequestHead
from bot.turn.parsing import Command
from tests.support.histories.database import before_step
from tests.support.histories.disk import Deed, deeds, do
from tests.support.histories.inventory import refs_of
from tests.support.histories.machine import Machine
from tests.support.histories.node import Run, Worker
from tests.support.patience import PATIENCE_SECONDS

Talk = Literal["issue 1", "issue 2", "pull 3", "pull 4", "fork 5"]
"""Pull 3 is from the bot's own branch, pull 4 from a person's; both close issue 1. Pull 5 comes from a fork."""

Verb = Literal["reset", "remove", "restore"]

verbs = st.sampled_from(("reset", "remove", "restore"))
talks = st.sampled_from(("issue 1", "issue 1", "issue 1", "issue 2", "pull 3", "pull 4", "fork 5"))
outcomes = st.sampled_from(("done", "failed"))

Deeds = list[tuple[Deed, str]]


class TurnRules(Machine):
    """Requests and their turns."""

    @initialize(cloned=st.booleans(), talk=st.none() | talks, doing=deeds, outcome=outcomes)
    def first(
        self,
        cloned: bool,
        talk: Talk | None,
        doing: Deeds,
        outcome: Literal["done", "failed"],
    ) -> None:
        """Begin with or without a clone; mostly there was a turn before."""
        if not cloned:
            shutil.rmtree(self.ground.clone.path)
        if talk is not None:
            self.turn_of(talk, doing, outcome)

    @rule(talk=talks)
    def asks(self, talk: Talk) -> None:
        """Ask; no worker runs it yet."""
        self.ask(talk)

    @rule(talk=talks, doing=deeds, outcome=outcomes)
    def turn(self, talk: Talk, doing: Deeds, outcome: Literal["done", "failed"]) -> None:
        self.turn_of(talk, doing, outcome)

    @rule(talk=talks, doing=deeds)
    def begins(self, talk: Talk, doing: Deeds) -> None:
        """Begin the next turn in line and leave it running."""
        self.ask(talk)
        if (run := self.begin()) is not None:
            self.work(run, doing)

    @rule(outcome=outcomes, doing=deeds)
    def ends(self, outcome: Literal["done", "failed"], doing: Deeds) -> None:
        """End a running turn."""
        for run in self.ground.runs[:1]:
            self.work(run, doing)
            self.end(run, outcome)

    @rule(talk=talks, doing=deeds, outcome=outcomes, step=st.integers(0, 120))
    def stopped(self, talk: Talk, doing: Deeds, outcome: Literal["done", "failed"], step: int) -> None:
        """Stop a turn at one of its steps."""
        stops, left = list[asyncio.Task[None]](), [step]

        async def stop() -> None:
            for run in self.ground.runs:
                await self.ground.ask(run.turn.conversation.number, commands=(Command("stop"),))
                run.run.stop.set()

        def count() -> None:
            if self.ground.runs:
                left[0] -= 1
                if left[0] == 0:
                    stops.append(asyncio.get_running_loop().create_task(stop()))

        self.ask(talk)
        before_step.append(count)
        try:
            if (run := self.begin()) is not None:
                self.work(run, doing)
                self.end(run, outcome)
        finally:
            before_step.remove(count)
        if stops:
            self.note(f"stopped at step {step // 20 * 20} and later")
            self.bot(asyncio.wait_for(stops[0], PATIENCE_SECONDS))

    @rule(talk=talks, other=talks)
    def two_claim_at_once(self, talk: Talk, other: Talk) -> None:
        """Let two workers claim at the same moment."""
        self.ask(talk)
        self.ask(other)

        async def both() -> list[Run]:
            ground = self.ground
            second = await ground.another_worker()
            found = await asyncio.gather(*(self.next_at_work(one) for one in (ground.worker, second)))
            return [run for run in found if run is not None]

        for run in self.bot(both()):
            self.arrived(run)

    @rule()
    def worker_dies(self) -> None:
        """Kill a worker as with kill -9; another one recovers."""
        self.bot(self.ground.kill())

    def turn_of(self, talk: Talk, doing: Deeds, outcome: Literal["done", "failed"] = "done") -> None:
        """Ask, and run the next turn in line to its end."""
        self.ask(talk)
        if (run := self.begin()) is not None:
            self.work(run, doing)
            self.end(run, outcome)

    def ask(self, talk: Talk, *commands: Command) -> None:
        """Write a request in the thread: the commands, or work without any."""
        kind, _, number = talk.partition(" ")
        pull = self.pull(talk, int(number)) if kind != "issue" else None
        if kind == "issue" or pull is not None:
            self.bot(self.ground.ask(int(number), pull, commands))

    def pull(self, talk: Talk, number: int) -> PullRequestHead | None:
        """Return the pull request; push its head as a person if it is missing. None where no such branch can be."""
        head = {"pull 3": "threadtree/issue-1", "pull 4": "feature", "fork 5": "patch"}[talk]
        ref = f"refs/pull/{number}/head" if talk == "fork 5" else f"refs/heads/{head}"
        remote = refs_of(self.ground.remote)
        if "refs/heads/threadtree" in remote and talk == "pull 3":
            return None
        if ref not in remote:
            base = remote.get("refs/heads/threadtree/issue-1") if talk == "pull 4" else None
            with self.hands():
                self.ground.push(ref, {head.replace("/", "-"): self.ground.content(head)}, onto=base)
        sha = refs_of(self.ground.remote)[ref]
        is_fork = talk == "fork 5"
        closes = () if is_fork else (1,)
        return PullRequestHead(head, sha, not is_fork, head_is_protected=False, closes=closes)

    def begin(self, worker: Worker | None = None) -> Run | None:
        """Claim the next turn and wait until its agent is at work; None if there is none, or it was refused."""

        run = self.bot(self.next_at_work(worker or self.ground.worker))
        if run is not None:
            self.arrived(run)
        return run

    async def next_at_work(self, worker: Worker) -> Run | None:
        """Claim until an agent is at work: a turn may move to another worktree, or be refused."""
        while (run := await self.ground.claim(worker)) is not None:
            if await self.ground.at_work(run):
                return run
            state = await self.ground.state_of(run)
            self.note(f"no agent: {state}")
            # A run that was interrupted after its agent's answer does not ask the agent again.
            ended = run.turn.so_far.resuming and state == "done"
            assert ended or state == "queued" or state.startswith(("refused: ", "stopped: ")), state
        return None

    def arrived(self, run: Run) -> None:
        """The agent is at work, so earlier damage is repaired."""
        path = self.ground.ctx.directory(run.turn.worktree.path)
        self.damaged.discard(path)
        self.spoiled.discard(path)
        self.check_order()

    def work(self, run: Run, doing: Deeds) -> None:
        """Do the agent's work."""
        path = self.ground.ctx.directory(run.turn.worktree.path)
        with self.hands(), self.ground.ledger.at_work(self.ground.state(path), self.ground.admin(path)):
            for deed, name in doing:
                do(self.ground, path, deed, name)

    def end(self, run: Run, outcome: Literal["done", "failed"]) -> None:
        """End the agent and the turn."""
        state = self.bot(self.ground.finish(run, outcome))
        self.note(f"end: {state}")
        assert state.split(":")[0] in (outcome, "stopped"), state
        self.check_order()
