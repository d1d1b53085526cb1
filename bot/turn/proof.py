"""After a turn with changes: the repository's check runs on the commit, and a failure goes to the agent once.

Whatever it says, the turn stays done and its work is pushed.
"""

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass, field, replace

import structlog

from bot import refs
from bot.agents.driver import AgentDone, Cancelled
from bot.check.running import Check, Checked, check_commit, place_for
from bot.failpoints import reached
from bot.github.errors import GitHubError
from bot.node.setup_script import script_on
from bot.prompt.check import ask_to_fix
from bot.prompt.foreign import Fence
from bot.sandbox.net.model_answers import ModelAnswers
from bot.sandbox.system import UnsafeCommandError
from bot.store import turns
from bot.thread import checks as words
from bot.thread import links, notices
from bot.thread.checks import SCRIPT, Base, Ran
from bot.thread.commit_message import split_subject, with_subject
from bot.thread.formatting import clause
from bot.thread.outcome import Check as Proved
from bot.thread.sanitize import closed
from bot.tree import Clone, GitError, OpenTree, StoppedError
from bot.turn import proof_rows as checks
from bot.turn.caps import capped, record_use
from bot.turn.kind import Ready
from bot.turn.proof_rows import KnownCheck
from bot.turn.pull_request import description_of
from bot.turn.turn_run import TurnRun

SHORTEST_SECONDS = 60.0
"""With less of the turn's time left, the agent is not told."""
_PROBLEMS = (GitError, refs.InvalidNameError, OSError, UnsafeCommandError)
_log = structlog.get_logger()


@dataclass(slots=True)
class Proof:
    """The proof of one run's result. `subject` is what the agent last asked for as the subject of the commit."""

    run: TurnRun
    ready: Ready
    subject: str | None
    _first: tuple[Ran, str] | None = field(default=None, init=False)
    """How the first check ended, and its commit."""
    _seconds: float = field(default=0, init=False)
    _shown: Checked | None = field(default=None, init=False)
    """The last run, for its pictures."""

    async def script(self, clone: Clone, head: str | None) -> bytes | None:
        """Return the check that is to run on the commit `head`; None where there is none, or nothing was changed."""
        run, default = self.run, self.run.turn.worktree.repository.default_branch
        is_due = run.ctx.rules.check and run.kind.is_checked and head != run.head_before
        if not is_due or head is None or default is None or not refs.is_branch(default):
            return None
        found = await script_on(clone, default, SCRIPT)
        if isinstance(found, str):
            run.check, run.proved = words.not_run(f"`{SCRIPT}` {found}"), Proved("not-run")
        return found if isinstance(found, bytes) else None

    async def ends(self, head: str, script: bytes) -> bool:
        """Check the commit `head`, which the clone has; return whether that was the last: False where the agent was
        told of a failure and worked on. Raises StoppedError, ClaimLostError.
        """
        run, self._shown = self.run, None
        try:
            done, base = await run.unless_stopped(self._check(head, script))
            run.progress.enter(None)
        except _PROBLEMS as problem:
            _log.warning("check-not-run", problem=str(problem))
            run.check, run.check_output, run.proved = words.not_run(clause(str(problem))), "", Proved("not-run")
            return True
        first, commit = self._first or (None, "")
        run.check = words.told(_ran(done), done.seconds, base, first, same_commit=commit == head)
        run.check_output, run.proved = done.output, words.result(_ran(done), done.seconds, base)
        self._first, self._shown = self._first or (_ran(done), head), done
        return run.proved.state != "failed" or not await self._works_on(done, base)

    async def show_pictures(self, tree: OpenTree, branch: str) -> None:
        """Push the check's pictures to a branch beside that of the worktree, and show them below the line, each beside
        the one of the default branch that looks otherwise.

        Not where a stop was accepted meanwhile. Raises ClaimLostError.
        """
        run, repository = self.run, self.run.turn.worktree.repository
        knows_none = run.ctx.redactor.knows_nothing_of
        pictures, before = (self._shown.pictures, self._shown.pictures_before) if self._shown is not None else ({}, {})
        all_of = {**pictures, **{f"{words.BEFORE}-{name}": data for name, data in before.items()}}
        shown = {name: data for name, data in all_of.items() if knows_none(f"{name}\n{data.decode('latin-1')}")}
        if not shown or await run.write(turns.stop_requested, run.turn.claim) is not None:
            return
        beside, commit = f"{branch}-pictures", None
        try:
            if not await run.ctx.github.is_protected(repository, beside):
                signing = run.ctx.signing_in(repository)
                commit = await tree.push_beside(beside, shown, run.ctx.author, words.PICTURES, signing)
        except (*_PROBLEMS, GitHubError) as problem:
            _log.warning("pictures-not-pushed", branch=beside, problem=str(problem))
        if commit is None:
            run.notices.append(words.pictures_not_pushed(beside))
            return
        web, run.pictures = f"{run.ctx.server_url}/{repository.full_name}", commit
        run.check += f"\n\n{words.pictures({name: links.raw_file(web, commit, name) for name in shown})}"

    async def _check(self, head: str, script: bytes) -> tuple[Checked, Base | None]:
        run, worktree = self.run, self.run.turn.worktree
        began, clone, default = time.monotonic(), run.tree.clone, worktree.repository.default_branch or ""
        differs = ("diff", "--name-only", "-z", "--no-renames", f"{refs.remote(default)}...{head}", "--", SCRIPT)
        if (await clone.run(*differs, check=False)).fields:
            run.notices.append(words.changed_in_branch(default))
        with place_for(run.ctx, worktree.folder) as place:
            check = Check(run.ctx, place, script, run.variables)
            known = await self._known(check)
            run.progress.enter(words.RUNNING)
            done = await check_commit(check, worktree, head)
            if done.failure is not None and known is not None and not known.now:
                known = await self._on_base(check, known.name) or known
        self._seconds += time.monotonic() - began
        return done, known

    async def _known(self, check: Check) -> Base | None:
        """Return how the last check on the base branch ended, by this script; None where it could not run there.

        It runs where that is not known, and where no run on the default branch has left what makes this one fast.
        """
        run, repository = self.run, self.run.turn.worktree.repository
        name = self.ready.base_branch or repository.default_branch or ""
        known, tip = await run.write(checks.last_on, repository, name), await run.tree.clone.tip(name)
        if tip is None:
            return None
        is_cold = name == repository.default_branch and not check.cache.exists()
        if is_cold or known is None or known.script != _digest(check):
            return await self._on_base(check, name)
        return Base(name, Ran(known.failure, known.passed, known.failed), now=known.commit == tip)

    async def _on_base(self, check: Check, name: str) -> Base | None:
        """Run the check on the newest commit of the base branch; return None where that was not possible."""
        run, worktree = self.run, self.run.turn.worktree
        run.progress.enter(words.running_on(name))
        try:
            if (tip := await run.tree.clone.tip(name)) is None:
                return None
            is_default = name == worktree.repository.default_branch
            ran = _ran(await check_commit(check, worktree, tip, keep=is_default))
        except _PROBLEMS as problem:
            _log.warning("check-not-run", branch=name, problem=str(problem))
            return None
        known = KnownCheck(tip, _digest(check), ran.failure, tuple(sorted(ran.passed)), tuple(sorted(ran.failed)))
        await run.write(checks.record, worktree.repository, name, known)
        return Base(name, ran)

    async def _works_on(self, done: Checked, base: Base | None) -> bool:
        """Tell the agent, once in a turn, that the check fails; return whether it worked on. Raises StoppedError.

        Not without time and money for it.
        """
        run, turn, ctx = self.run, self.run.turn, self.run.ctx
        passes = base is not None and base.now and base.ran.failure is None
        spent = (ctx.clock() - turn.started_at).total_seconds() - self._seconds
        limits = replace(ctx.limits, total_seconds=ctx.limits.total_seconds - spent)
        is_dear = run.cap or await ctx.cap_reached(turn.worktree.repository, run.progress.use.cost_usd)
        is_short = limits.total_seconds < SHORTEST_SECONDS or is_dear
        if is_short or not await run.write(checks.may_tell, turn.claim):
            return False
        reached("told-of-check")
        default = turn.worktree.repository.default_branch or ""
        prompt = ask_to_fix(Fence(secrets.token_hex(4)), default, _ran(done), done.output, passes_on_base=passes)
        run.progress.agent_goes_on()
        answers = ModelAnswers(ctx.clock, run.progress.model_answered)
        asked = turn, run.kind, tuple(map(ctx.redactor.redact, prompt)), limits, answers
        async with capped(run) as ending:
            outcome = await ctx.go_on(*asked, ending, run.progress.note, run.disk_overflowed)
        if outcome is None:
            return False
        await record_use(run)
        if run.stop.is_set() and isinstance(outcome, Cancelled):
            raise StoppedError
        run.notices += [notices.cost_limit_reached(run.cap)] if run.cap is not None else []
        if isinstance(outcome, AgentDone):
            await self._save(outcome.text)
        return True

    async def _save(self, text: str) -> None:
        """Add what the agent said to its answer, before it is pushed."""
        run = self.run
        earlier, subject = split_subject(run.answer or "")
        added, latest = split_subject(await asyncio.to_thread(run.ctx.redactor.redact, text))
        self.subject = latest or subject
        answer = with_subject("\n\n".join([closed(earlier), words.AFTER, added]), self.subject)
        description = await description_of(run)
        saved = answer, tuple(run.notices), run.thread_answers, run.kept, description
        await run.write(turns.save_answer, run.turn.claim, *saved)
        run.answer = answer


def _digest(check: Check) -> str:
    """Return what a result on the base is valid for: the script, and the variables by name."""
    return hashlib.sha256("\n".join([*sorted(check.variables), ""]).encode() + check.script).hexdigest()


def _ran(done: Checked) -> Ran:
    report = done.report
    return Ran(done.failure, report.passed, report.failed, report.skipped, report.unread, done.unshown)
