"""Rules: threads close and reopen, people ask to reset, remove and restore worktrees, workers do it."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from bot.turn.parsing import Command
from bot.verbs import VERBS
from bot.verbs import stop as closing
from tests.support.histories.node import REPOSITORY
from tests.support.histories.turns import Talk, TurnRules, Verb, talks, verbs
from tests.support.worktree_jobs import remove_all


class CommandRules(TurnRules):
    """The ends and the restores of worktrees."""

    @rule(talk=talks, reopens=st.booleans(), at_once=st.booleans())
    def closes(self, talk: Talk, reopens: bool, at_once: bool) -> None:
        self.close(talk)
        if at_once:
            self.carry_out()
        if reopens:
            self.reopen(talk)

    @rule(talk=talks, verb=verbs, at_once=st.booleans())
    def commands(self, talk: Talk, verb: Verb, at_once: bool) -> None:
        self.command(talk, verb)
        if at_once:
            self.carry_out()

    @rule()
    def carries_out(self) -> None:
        self.carry_out()

    def reopen(self, talk: Talk) -> None:
        """Open the thread again."""
        number = int(talk.split()[1])

        async def reopen() -> None:
            async with self.ground.pool.acquire() as connection, connection.transaction():
                await closing.reopen(connection, REPOSITORY, number, self.ground.later())

        self.bot(reopen())

    def close(self, talk: Talk) -> None:
        """Close the thread and tell its running turn."""
        number = int(talk.split()[1])

        async def close() -> None:
            async with self.ground.pool.acquire() as connection, connection.transaction():
                later = self.ground.later()
                await closing.close(connection, VERBS, "https://github.example", REPOSITORY, number, later, later)
            await self.ground.stop()

        self.bot(close())

    def command(self, talk: Talk, verb: Verb) -> None:
        """Write `/worktree …` in the thread."""
        self.ask(talk, Command("worktree", verb))

    def carry_out(self) -> None:
        """Do the work of a worker that needs no agent: turns, then removals."""

        async def all_that_waits() -> None:
            await self.ground.run_alone()
            await remove_all(self.ground.ctx)

        self.bot(all_that_waits(), index_too=True)
        live = self.live_paths()
        self.damaged &= live
        self.spoiled &= live
        self.check_order()
