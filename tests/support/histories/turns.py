"""Rules: people ask in threads, turns run there, workers die."""

import asyncio
from pathlib import Path
from typing import Literal

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import rule

from bot.decide.parsing import ParsedComment
from bot.handlers.choose_worktree import PullRequestHead
from tests.support.histories.disk import Deed, deeds, do
from tests.support.histories.inventory import refs_of
from tests.support.histories.machine import Machine
from tests.support.histories.node import Run, Worker

Talk = Literal["issue 1", "issue 2", "pull 3", "pull 4", "fork 5"]
"""Pull 3 is of the bot's own branch, pull 4 of a person's; both close issue 1. Pull 5 comes from a fork."""

REQUEST = ParsedComment(request="do it")
Verb = Literal["reset", "remove", "restore"]

verbs = st.sampled_from(("reset", "remove", "restore"))
talks = st.sampled_from(("issue 1", "issue 2", "pull 3", "pull 4", "fork 5"))
outcomes = st.sampled_from(("done", "done", "done", "failed"))

Deeds = list[tuple[Deed, str]]


class TurnRules(Machine):
    """What is asked and what runs."""

    @rule(talk=talks)
    def asks(self, talk: Talk) -> None:
        """Somebody asks; nobody runs it yet."""
        self.ask(talk)

    @rule(talk=talks, doing=deeds, outcome=outcomes)
    def turn(self, talk: Talk, doing: Deeds, outcome: Literal["done", "failed"]) -> None:
        self.turn_of(talk, doing, outcome)

    @rule(talk=talks, doing=deeds)
    def begins(self, talk: Talk, doing: Deeds) -> None:
        """The next turn in line runs, and goes on running."""
        self.ask(talk)
        if (run := self.begin()) is not None:
            self.work(run, doing)

    @rule(outcome=outcomes, doing=deeds)
    def ends(self, outcome: Literal["done", "failed"], doing: Deeds) -> None:
        """A running turn comes to its end."""
        for run in self.ground.runs[:1]:
            self.work(run, doing)
            self.end(run, outcome)

    @rule(talk=talks, other=talks)
    def two_claim_at_once(self, talk: Talk, other: Talk) -> None:
        """Two workers hear the doorbell at the same moment."""
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
        """kill -9; another worker sees after what it left."""
        self.bot(self.ground.kill())

    def turn_of(self, talk: Talk, doing: Deeds, outcome: Literal["done", "failed"] = "done") -> None:
        """Somebody asks, and the next turn in line runs to its end."""
        self.ask(talk)
        if (run := self.begin()) is not None:
            self.work(run, doing)
            self.end(run, outcome)

    def ask(self, talk: Talk, asks: ParsedComment = REQUEST) -> None:
        """Somebody says something in the thread."""
        kind, _, text = talk.partition(" ")
        number, facts = int(text), self.ground.facts(text=asks.request)
        if kind != "issue":
            facts = self.ground.facts(text=asks.request, pull=self.pull(talk, number))
        self.bot(self.ground.ask(number, facts, asks, "issue" if kind == "issue" else "pull"))

    def pull(self, talk: Talk, number: int) -> PullRequestHead:
        """The pull request; its head is pushed by a person if it is not there."""
        head = {"pull 3": "threadtree/issue-1", "pull 4": "feature", "fork 5": "patch"}[talk]
        ref = f"refs/pull/{number}/head" if talk == "fork 5" else f"refs/heads/{head}"
        remote = refs_of(self.ground.remote)
        if ref not in remote:
            base = remote.get("refs/heads/threadtree/issue-1") if talk == "pull 4" else None
            with self.hands():
                self.ground.push(ref, {head.replace("/", "-"): self.ground.content(head)}, onto=base)
        sha = refs_of(self.ground.remote)[ref]
        is_fork = talk == "fork 5"
        closes = () if is_fork else (1,)
        return PullRequestHead(head, sha, not is_fork, head_is_protected=False, closes=closes)

    def begin(self, worker: Worker | None = None) -> Run | None:
        """Claims the next turn and waits until its agent is at work; None where there is none, or it was refused."""

        run = self.bot(self.next_at_work(worker or self.ground.worker))
        if run is not None:
            self.arrived(run)
        return run

    async def next_at_work(self, worker: Worker) -> Run | None:
        """Claims until an agent is at work: a turn may be sent on to another worktree, or refused."""
        while (run := await self.ground.claim(worker)) is not None:
            if await self.ground.at_work(run):
                return run
            state = await self.ground.state_of(run)
            event(f"no agent: {state}")
            # A run that was cut off after its agent had answered asks it no more.
            ended = run.turn.resuming and state == "done"
            assert ended or state == "queued" or state.startswith(("refused: ", "stopped: ")), state
        return None

    def arrived(self, run: Run) -> None:
        """The agent is at work: whatever was wrong before is mended."""
        self.damaged.discard(Path(run.turn.worktree.path))
        self.check_order()

    def work(self, run: Run, doing: Deeds) -> None:
        """What the agent does."""
        with self.hands():
            for deed, name in doing:
                do(self.ground, Path(run.turn.worktree.path), deed, name)

    def end(self, run: Run, outcome: Literal["done", "failed"]) -> None:
        """The agent ends, and so does the turn."""
        state = self.bot(self.ground.finish(run, outcome))
        event(f"end: {state}")
        assert state.split(":")[0] in (outcome, "stopped"), state
        self.check_order()
