"""Rules: time passes, worktrees are pruned and repaired, and workers are killed between two effects."""

import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import rule

import bot
from bot import failpoints
from bot.care.asked import Pruning
from bot.care.clones import care_for_clones
from bot.care.prune import prune
from bot.care.repair import repair
from tests.support.failpoints import KilledError
from tests.support.histories.commands import CommandRules
from tests.support.histories.database import NODE
from tests.support.histories.disk import deeds
from tests.support.histories.turns import Deeds, Talk, Verb, talks, verbs
from tests.support.retention import policy_for

REACHED = re.compile(r'\breached\(\s*"([a-z-]+)"')
FAILPOINTS = sorted(
    {name for file in Path(str(bot.__file__)).parent.rglob("*.py") for name in REACHED.findall(file.read_text())}
)
RESCUE_DAYS = 180

What = Literal["turn", "close", "command", "sweep", "repair", "move"]


class MaintenanceRules(CommandRules):
    """The acts of timers and operators."""

    @rule(
        what=st.sampled_from(("sweep", "sweep", "repair", "pack", "restart")),
        days=st.sampled_from((0, 1, 40, 100, 200)),
        name=st.sampled_from((NODE, "elsewhere")),
        moved=st.booleans(),
    )
    def housekeeping(
        self,
        what: Literal["sweep", "repair", "pack", "restart"],
        days: int,
        name: str,
        moved: bool,
    ) -> None:
        """Prune unused worktrees after some time or a jump of the clock, repair, pack, or start the node again under
        this name, with DATA_DIR at another path where it is `moved`.
        """
        match what:
            case "sweep":
                self.sweep(days)
            case "repair":
                self.bot(self.repair(), index_too=True)
            case "pack":
                self.pack()
            case "restart":
                self.restart(name, moved=moved)

    @rule(
        name=st.sampled_from(FAILPOINTS),
        talk=talks,
        what=st.sampled_from(("turn", "turn", "close", "command", "sweep", "repair", "move")),
        doing=deeds,
        verb=verbs,
    )
    def killed(self, name: str, talk: Talk, what: What, doing: Deeds, verb: Verb) -> None:
        """Kill a worker where it first reaches this failpoint; another worker continues."""
        reached: list[str] = []

        def kill(thread_ref: str) -> None:
            if thread_ref == name:
                failpoints.listener = None
                reached.append(thread_ref)
                raise KilledError(name)

        failpoints.listener = kill
        try:
            match what:
                case "turn":
                    self.turn_of(talk, doing)
                case "close":
                    self.close(talk)
                    self.carry_out()
                case "command":
                    self.command(talk, verb)
                    self.carry_out()
                case "sweep":
                    self.sweep(100)
                case "repair":
                    self.bot(self.repair(), index_too=True)
                case "move":
                    self.restart("elsewhere", moved=True)
        except KilledError:
            self.note(f"killed at {name}")
        finally:
            failpoints.listener = None
        if reached:
            # Until a worker continues it, it is half done; still nothing is lost.
            self.excuse_all()
            # A turn that ends commits what is on disk, not what was staged before.
            self.bot(self.ground.kill(), index_too=what != "turn")
            self.carry_out()

    def pack(self) -> None:
        """Delete what nothing reaches from the clone."""
        stamp = self.ground.clone.path / "threadtree-packed"
        if self.ground.clone.path.is_dir():
            stamp.touch()
            os.utime(stamp, (0, 0))
        self.ground.ledger.reached.clear()
        self.excuse_old_rescues()
        self.bot(care_for_clones(self.ground.ctx, timedelta(days=90)), index_too=True)

    def restart(self, name: str, *, moved: bool) -> None:
        before = self.ground.ctx.data_dir
        to = before.with_name(f"data-{next(self.ground.numbers)}") if moved else before

        def now(paths: set[Path]) -> set[Path]:
            return {to / path.relative_to(before) for path in paths}

        self.ignored = {row: replace(one, path=to / one.path.relative_to(before)) for row, one in self.ignored.items()}
        self.damaged, self.spoiled = now(self.damaged), now(self.spoiled)
        self.bot(self.ground.restart(to, name), index_too=True)
        self.check_order()

    def sweep(self, days: int) -> None:
        ground = self.ground
        self.bot(ground.put_forward(days))
        policy = policy_for(
            ground.now, detached_days=30, branch_days=90, orphan_days=90, rescue_days=RESCUE_DAYS, older_than=None
        )

        async def swept() -> None:
            await prune(ground.ctx, lambda *_: policy, Pruning(force=True))

        self.excuse_old_rescues()
        self.bot(swept(), index_too=True)

    def excuse_old_rescues(self) -> None:
        """Allow rescues to go where one may be too old to be kept."""
        if self.ground.now - self.ground.began > timedelta(days=RESCUE_DAYS - 1):
            self.seen = self.ground.ledger.look(rescues=False)

    async def repair(self) -> None:
        await repair(self.ground.ctx)
