"""A scenario that reaches each failpoint, and the expected state after the kill and the restart."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from bot.demo.pair import SCRIPTED_AGENT
from bot.simulated.github.faults import FailBefore
from tests.support.failpoint_scenario import Scenario
from tests.support.git_repositories import git, lfs_pointer, require_git_lfs
from tests.support.patience import until_true
from tests.support.submodules import add_submodules

HELLO = "write hello.txt: hello\nsay Here it is."
MINE = "write mine.txt: mine\nsay Ready."
LEFT = "write left.txt: unfinished\nfail It broke."


class Create(Scenario):
    """The first request of a repository, whose older history arrives beside the agent."""

    failpoints: Sequence[str] = (
        "clone-initialised clone-fetched clone-pruned worktree-registered worktree-checked-out worktree-locked "
        "turn-end-written",
        # What is cut off at one of these does not come to the next.
        *("branches-received", "branches-moved-in", "history-arrived"),
    )

    async def prepare(self) -> None:
        await self.here.maria.push(self.here.repository, "main", {"second.txt": "second\n"}, "Second")

    async def act(self) -> None:
        self.issue = await self.here.ask(HELLO)

    async def check(self) -> None:
        await self.answers(self.issue, "Here it is.")
        await self.pushed("threadtree/issue-1", hello="hello")
        assert await self.live() == {"issue-1": "threadtree/issue-1"}
        assert await self.git("rev-parse", "--is-shallow-repository") == "false"
        assert await self.git("rev-list", "--count", "refs/remotes/origin/main") == "2"
        await self.git("fsck", "--full", "--connectivity-only")


class Answered(Scenario):
    """Issue 1 has an answer, and a commit on GitHub."""

    request = MINE

    async def prepare(self) -> None:
        self.issue = await self.here.ask(self.request)
        await self.here.answered(self.issue, "Ready.")
        await self.quiet()


class Arriving(Answered):
    """Somebody has pushed a branch that the second request does not need: it arrives while the agent works."""

    failpoints = ("branches-moved-in", "branches-received")

    gate: Path | None = None

    async def prepare(self) -> None:
        await super().prepare()
        await self.here.maria.push(self.here.repository, "other", {"other.txt": "other\n"}, "Other")
        self.gate = self.here.data_dir.with_name("gate")

    async def act(self) -> None:
        await self.here.ask(f"wait {self.gate}\n{HELLO}", self.issue)

    async def quiet(self) -> None:
        if self.gate is not None:
            await until_true((self.here.data_dir / "repos/acme/shop.git/refs/remotes/origin/other").exists)
            self.gate.touch()
        await super().quiet()

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Here it is.")
        await self.pushed("threadtree/issue-1", hello="hello", mine="mine")
        assert await self.git("show", "refs/remotes/origin/other:other.txt") == "other"
        await self.git("fsck", "--full", "--connectivity-only")


class Told(Scenario):
    """The agent of a running turn is about to be told what is asked meanwhile."""

    failpoints = ("message-taken",)

    settings = {"AGENT_COMMAND": f"{SCRIPTED_AGENT} --resume --steering"}  # noqa: RUF012 - never changed

    async def prepare(self) -> None:
        self.gate = self.here.data_dir.with_name("gate")
        self.issue = await self.here.ask(f"wait {self.gate}\nsave prompt prompt.txt\nsay Here it is.")
        await self.here.until("select exists (select from steps where words like 'Wait for%')")

    async def act(self) -> None:
        await self.here.ask("use tabs", self.issue)

    async def quiet(self) -> None:
        self.gate.touch()
        await super().quiet()

    async def check(self) -> None:
        await self.answers(self.issue, "Here it is.")
        files = await self.here.repository.git.files("threadtree/issue-1")
        assert "@maria wrote:" in files["prompt.txt"]
        assert files["prompt.txt"].count("use tabs") == 1
        assert await self.here.value("select string_agg(state, ' ' order by id) from turns") == "done done"
        assert await self.here.value("select count(*) from turns where started_at is not null") == 1


class SetUp(Create):
    """The same with a script that prepares the checkout."""

    failpoints = ("worktree-set-up",)

    settings = {"SETUP_SCRIPT": "true"}  # noqa: RUF012 - never changed

    async def prepare(self) -> None:
        script = {".threadtree/setup": "#!/bin/sh\necho set up >> made\n", ".gitignore": "/made\n"}
        await self.here.maria.push(self.here.repository, "main", script, "Set-up")

    async def check(self) -> None:
        await super().check()
        made = self.here.data_dir / "worktrees/acme/shop/issue-1/made"
        assert made.read_text() == "set up\n" * 2, "it was not recorded that it had run"


class WithSubmodule(Create):
    """The same with a submodule."""

    failpoints = ("submodules-filled",)

    async def prepare(self) -> None:
        lib = await self.here.github.create_repository("acme/lib", {"lib.txt": "lib\n"})
        tip = (await lib.git.branches())["main"]
        await add_submodules(datetime.now(UTC), self.here.repository, "main", lib=f"../lib.git {tip}")

    async def check(self) -> None:
        await super().check()
        assert (self.here.data_dir / "worktrees/acme/shop/issue-1/lib/lib.txt").read_text() == "lib\n"


class Checked(Create):
    """The repository's check fails on what the agent did at first, and passes on the base."""

    failpoints = ("commit-checked-out check-ended",)
    mended: str | None = "mended"

    async def prepare(self) -> None:
        script = "#!/bin/sh\necho junk | tee -a README.md > junk.txt\ntest ! -e hello.txt || test -e mended.txt\n"
        await self.here.maria.push(self.here.repository, "main", {".threadtree/check": script}, "Check")
        await self.here.maria.push(self.here.repository, "main", {"second.txt": "second\n"}, "Second")

    async def act(self) -> None:
        self.issue = await self.here.ask(f"{HELLO}\nmend write mended.txt: mended\\nsay Mended.")

    async def check(self) -> None:
        await self.answers(self.issue, f"check {'passed' if self.mended else 'failed'}")
        await self.pushed("threadtree/issue-1", hello="hello", mended=self.mended)
        assert "junk" not in str(await self.here.repository.git.files("threadtree/issue-1")).replace(
            "junk | tee -a README.md > junk.txt", ""
        )
        assert not list((self.here.data_dir / "checks").glob("*/*/*/tree"))
        assert await self.here.value("select told_of_check from turns") is True


class ToldOfCheck(Checked):
    """The same, but the agent was told already: it is not told again."""

    failpoints = ("told-of-check",)
    mended = None


class CheckedNoMore(Checked):
    """The same, but the turn does not go on: the next one pushes what the agent did, and nothing of the check."""

    failpoints = ("check-ended",)

    cut_offs = 1

    async def check(self) -> None:
        await self.answers(self.issue, "**Interrupted:**")
        await self.here.ask("say Two.", self.issue)
        await self.here.answered(self.issue, "Two.")
        await self.pushed("threadtree/issue-1", hello="hello", junk=None)
        assert "junk" not in (await self.here.repository.git.files("threadtree/issue-1"))["README.md"]
        await self.quiet()


class Picture(Scenario):
    """The first request of a repository with a file under Git LFS changes it."""

    failpoints = ("lfs-files-written lfs-objects-pushed",)

    content = b"all colours\n"

    async def prepare(self) -> None:
        require_git_lfs()
        files = {".gitattributes": "*.bin filter=lfs -text\n", "a.bin": lfs_pointer(self.content)}
        self.here.repository.lfs[sha256(self.content).hexdigest()] = self.content
        await self.here.maria.push(self.here.repository, "main", files, "Picture")

    async def act(self) -> None:
        self.issue = await self.here.ask("append a.bin: more\nsay Here it is.")

    async def check(self) -> None:
        await self.answers(self.issue, "Here it is.")
        changed = self.content + b"more\n"
        files = await self.here.repository.git.files("threadtree/issue-1")
        assert files["a.bin"] == lfs_pointer(changed).strip()
        assert self.here.repository.lfs[sha256(changed).hexdigest()] == changed


class WithWork(Answered):
    """Issue 1 has a commit on GitHub and an uncommitted file in its worktree."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.leave()

    async def leave(self) -> None:
        """Leave the file, as an agent's process does that outlives its turn."""
        (self.worktree / "left.txt").write_text("unfinished\n")

    @property
    def worktree(self) -> Path:
        return self.here.data_dir / "worktrees" / "acme" / "shop" / "issue-1"


class BrokenClone(WithWork):
    """The clone is damaged: it is kept and fetched again, and so is the worktree."""

    failpoints = ("clone-remade clone-set-aside",)

    async def act(self) -> None:
        await self.git("pack-refs", "--all")
        shutil.rmtree(self.here.data_dir / "repos" / "acme" / "shop.git" / "refs")
        await self.here.ask(HELLO, self.issue)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Here it is.")
        await self.pushed("threadtree/issue-1", hello="hello", mine="mine")
        assert await self.live() == {"issue-1": "threadtree/issue-1"}
        [clone] = (self.here.data_dir / "kept").glob("shop.git.*")
        assert "refs/heads/threadtree/issue-1" in (clone / "packed-refs").read_text()
        [left] = (self.here.data_dir / "kept").glob("issue-1.*/left.txt")
        assert left.read_text().strip() == "unfinished"


class Moved(WithWork):
    """DATA_DIR has another place, and the worker that follows it is killed."""

    failpoints = ("worktree-moved",)

    command = ("worker",)

    async def act(self) -> None:
        elsewhere = self.here.data_dir.with_name("moved")
        self.here.data_dir.rename(elsewhere)
        self.here.environment["DATA_DIR"] = str(elsewhere)

    async def check(self) -> None:
        await self.here.ask(HELLO, self.issue)
        await self.here.answered(self.issue, "Here it is.")
        await self.pushed("threadtree/issue-1", hello="hello", mine="mine")
        assert (self.worktree / "left.txt").read_text().strip() == "unfinished"
        assert await self.live() == {"issue-1": "threadtree/issue-1"}


class Followed(Answered):
    """A person took the commit off the issue's branch: the worktree follows."""

    failpoints = ("rewritten-kept",)

    async def take_off(self) -> None:
        await self.here.repository.git.run("update-ref", "refs/heads/threadtree/issue-1", "refs/heads/main")

    async def prepare(self) -> None:
        await super().prepare()
        await self.take_off()

    async def act(self) -> None:
        await self.here.ask(HELLO, self.issue)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Here it is.")
        await self.pushed("threadtree/issue-1", hello="hello", mine=None)


class ParkedAnew(Followed):
    """The commit was taken off while the agent worked on top of it."""

    failpoints = ("parked-anew",)

    async def prepare(self) -> None:
        await Answered.prepare(self)

    async def act(self) -> None:
        gate = self.here.data_dir.with_name("gate")
        await self.here.ask(f"wait {gate}\n{HELLO}", self.issue)
        await self.here.until("select count(*) = 1 from turns where state = 'running' and session_id is not null")
        await self.take_off()
        gate.touch()

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "`threadtree/issue-1-turn-2`")
        await self.pushed("threadtree/issue-1", hello=None, mine=None)
        await self.pushed("threadtree/issue-1-turn-2", hello="hello", mine=None)


class SignedOff(Answered):
    """What is pushed is made anew first, also the agent's own commit."""

    failpoints = ("commits-signed signed-branch-moved",)

    settings = {"SIGN_OFF": "true"}  # noqa: RUF012 - never changed

    async def act(self) -> None:
        await self.here.ask(f"write more.txt: more\ncommit More\n{HELLO}", self.issue)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Here it is.")
        await self.pushed("threadtree/issue-1", hello="hello", mine="mine", more="more")
        made = await self.here.repository.git.log("threadtree/issue-1", "^main")
        assert [message.count("Signed-off-by: ") for _, message, _ in made] == [1, 1, 1]


class Switch(Answered):
    """The head of a pull request continues the issue's branch: the issue's worktree is switched to it."""

    failpoints = ("switch-checked switch-checked-out switch-saved push-accepted",)

    async def prepare(self) -> None:
        await super().prepare()
        person, repository = self.here.maria, self.here.repository
        await person.push(repository, "feature", {"more.txt": "more\n"}, "More", "threadtree/issue-1")
        self.pull = await person.open_pull(repository, head="feature", title="Feature", body="Fixes #1")

    async def act(self) -> None:
        await self.here.ask(HELLO, self.pull)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "`feature`")
        await self.answers(self.pull, "Here it is.")
        await self.pushed("feature", hello="hello", mine="mine", more="more")
        await self.pushed("threadtree/issue-1", mine="mine")
        assert await self.live() == {"issue-1": "feature"}


class Leave(Switch):
    """GitHub says later that a pull request closes the issue: its own worktree is left for the issue's."""

    failpoints = ("worktree-left",)

    async def prepare(self) -> None:
        await super().prepare()
        self.here.github.faults.add(FailBefore(502), method="POST", path="/graphql", times=None)
        await self.here.ask("say One.", self.pull)
        await self.here.answered(self.pull, "One.")
        self.here.github.faults.clear()
        await self.quiet()

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "`feature`")
        await self.answers(self.pull, "One.", "GitHub says by now that this pull request closes #1")
        assert "checked out again" not in self.here.answers(self.pull)[-1].body
        assert await self.live() == {"issue-1": "feature"}


class Merged(Answered):
    """The issue's branch was merged: its next request uses another branch."""

    failpoints = ("next-branch-checked-out branch-pushed",)

    async def prepare(self) -> None:
        await super().prepare()
        person = self.here.maria
        pull = await person.open_pull(self.here.repository, head="threadtree/issue-1", title="Mine")
        await person.merge(pull)
        await self.quiet()

    async def act(self) -> None:
        await self.here.ask(HELLO, self.issue)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Here it is.")
        assert await self.live() == {"issue-1": "threadtree/issue-1-2"}
        await self.pushed("threadtree/issue-1-2", hello="hello", mine="mine")


class OpenPullRequest(Answered):
    """A command opens a pull request."""

    failpoints = ("pull-request-created",)
    request = f"{MINE}\ndescribe Title: Mine\\n\\nThis is mine."

    async def act(self) -> None:
        await self.here.maria.comment(self.issue, "/pr")

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Opened the pull request [#2]")
        [pull] = self.here.repository.pulls
        assert pull.head_ref == "threadtree/issue-1"
        assert "This is mine." in (pull.body or "")
        assert await self.live() == {"issue-1": "threadtree/issue-1"}


class Describe(OpenPullRequest):
    """A request pushes to the branch of the bot's pull request, which is described anew."""

    failpoints = ("description-written",)

    async def prepare(self) -> None:
        await super().prepare()
        await super().act()
        await self.here.answered(self.issue, "Opened the pull request [#2]")
        await self.quiet()

    async def act(self) -> None:
        await self.here.ask(f"{HELLO}\ndescribe Title: Ours\\n\\nThis is ours.", self.issue)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Opened the pull request [#2]", "Here it is.")
        [pull] = self.here.repository.pulls
        assert pull.title == "Ours"
        assert "This is ours." in (pull.body or "")
        assert len(pull.revisions) == 2, "it was rewritten once"


class AskAgain(Scenario):
    """A repository's file asks by itself: once, in one issue."""

    failpoints = ("standing-stored standing-opened",)
    settings: Mapping[str, str] = {"SWEEP_INTERVAL_SECONDS": "1"}

    async def prepare(self) -> None:
        entry = '[[standing]]\nevery = "24h"\nask = "write hello.txt: hello"\nas = "maria"\n'
        await self.here.maria.push(self.here.repository, "main", {".threadtree/config.toml": entry}, "Ask")
        self.issue = await self.here.ask("say Ready.")
        await self.here.answered(self.issue, "Ready.")
        await self.here.until("select due_at is not null from standing")
        await self.quiet()

    async def act(self) -> None:
        await self.execute("update standing set due_at = now()")

    async def check(self) -> None:
        first, second = self.here.repository.threads.values()
        await self.answers(first, "Ready.")
        await self.answers(second, "**Changed**")
        assert await self.here.value("select count(*) from deliveries where event = 'standing'") == 1
        assert await self.live() == {"issue-1": "threadtree/issue-1", "issue-2": "threadtree/issue-2"}


class CloseIssue(WithWork):
    """The issue is closed: its worktree is removed, and work that is not on GitHub is rescued."""

    failpoints = ("branch-deleted entry-dropped metadata-deleted rescue-committed rescued trashed",)

    async def act(self) -> None:
        await self.here.maria.close(self.issue)

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.")
        assert await self.live() == {}
        await self.rescued_once()


class Reset(WithWork):
    """The worktree is reset by a command: the branch stays, uncommitted work is rescued, and a script prepares it."""

    failpoints = ("worktree-changed reset-done reset-rescued outcome-saved",)

    settings = SetUp.settings

    async def prepare(self) -> None:
        script = "#!/bin/sh\ntrue\n"
        await self.here.maria.push(self.here.repository, "main", {".threadtree/setup": script}, "Set-up")
        await super().prepare()

    async def act(self) -> None:
        await self.here.maria.comment(self.issue, "/worktree reset")

    async def check(self) -> None:
        assert len(self.here.answers(self.issue)) == 2
        assert "`.threadtree/setup` ran for " in self.here.answers(self.issue)[-1].body
        await self.rescued_once()
        assert await self.live() == {"issue-1": "threadtree/issue-1-2"}
        assert not (self.worktree / "left.txt").exists()
        await self.pushed("threadtree/issue-1", mine="mine")


class Undo(WithWork):
    """What the last request left is taken back, and what the one before pushed stays."""

    failpoints = ("undo-rescued undone",)

    async def leave(self) -> None:
        await self.here.ask(LEFT, self.issue)
        await self.here.answered(self.issue, "It broke.")
        await self.quiet()

    async def act(self) -> None:
        await self.here.maria.comment(self.issue, "/undo")

    async def check(self) -> None:
        assert len(self.here.answers(self.issue)) == 3
        assert self.here.answers(self.issue)[-1].body.startswith("Took back what turn 2 (maria's request) left here.")
        await self.rescued_once()
        assert await self.live() == {"issue-1": "threadtree/issue-1"}
        assert not (self.worktree / "left.txt").exists()
        await self.pushed("threadtree/issue-1", mine="mine")


class Revert(Answered):
    """What the last request pushed is reverted by a commit."""

    failpoints = ("undone",)

    async def prepare(self) -> None:
        await super().prepare()
        await self.here.ask(HELLO, self.issue)
        await self.here.answered(self.issue, "Here it is.")
        await self.quiet()

    async def act(self) -> None:
        await self.here.maria.comment(self.issue, "/undo")

    async def check(self) -> None:
        assert len(self.here.answers(self.issue)) == 3
        files = await self.here.repository.git.files("threadtree/issue-1")
        assert (files.get("mine.txt"), files.get("hello.txt")) == ("mine", None)
        assert await self.here.value("select count(*) from rescues") == 0


class Update(Answered):
    """The base is merged into the branch."""

    failpoints = ("base-merged",)

    async def prepare(self) -> None:
        await super().prepare()
        await self.here.maria.push(self.here.repository, "main", {"second.txt": "second\n"}, "Second")

    async def act(self) -> None:
        await self.here.maria.comment(self.issue, "/update")

    async def check(self) -> None:
        await self.answers(self.issue, "Ready.", "Merged 1 commit of `main` without conflicts.")
        await self.pushed("threadtree/issue-1", mine="mine", second="second")


class Restore(WithWork):
    """The rescued work is restored by a command."""

    failpoints = ("commits-restored files-restored restore-begun",)

    async def prepare(self) -> None:
        await super().prepare()
        await self.leave_more()
        await self.here.maria.comment(self.issue, "/worktree remove")
        await self.here.until("select state = 'removed' from worktrees")
        await self.quiet()

    async def leave_more(self) -> None:
        """Add more to the worktree before it is removed."""

    async def act(self) -> None:
        await self.here.maria.comment(self.issue, "/worktree restore")

    async def check(self) -> None:
        assert len(self.here.answers(self.issue)) == 3
        assert (self.worktree / "left.txt").read_text() == "unfinished\n"
        assert (self.worktree / "mine.txt").read_text() == "mine\n"
        assert await self.live() == {"issue-1": "threadtree/issue-1"}


class RestoreKept(Restore):
    """The same, but the directory was kept because it has a repository inside."""

    failpoints = ("kept-files-restored kept-restore-begun worktree-set-aside",)

    async def leave_more(self) -> None:
        nested = self.worktree / "nested"
        git(self.worktree, "init", "-q", str(nested))
        (nested / "inside.txt").write_text("inside\n")
        git(nested, "add", "-A")
        git(nested, "commit", "-q", "-m", "Inside")

    async def check(self) -> None:
        await super().check()
        assert git(self.worktree / "nested", "show", "HEAD:inside.txt") == "inside"
        assert (self.worktree / "nested" / "inside.txt").read_text() == "inside\n"


class Prune(WithWork):
    """An operator prunes an unused worktree."""

    failpoints = ("removal-decided",)

    command = ("worktrees", "prune", "--older-than", "0h")

    async def act(self) -> None:
        return

    async def check(self) -> None:
        await self.here.run(*self.command)
        await self.quiet()
        assert await self.live() == {}
        await self.rescued_once()


class ExpireRescue(CloseIssue):
    """A rescue is old enough to expire."""

    failpoints = ("rescue-dropped",)

    command = ("worktrees", "prune")

    async def prepare(self) -> None:
        await super().prepare()
        await self.here.maria.close(self.issue)
        await self.here.until("select state = 'removed' from worktrees")
        await self.quiet()

    async def act(self) -> None:
        await self.execute("update rescues set created_at = now() - interval '181 days'")

    async def check(self) -> None:
        await self.here.run(*self.command)
        assert await self.rescued() == []
        assert await self.here.value("select count(*) from rescues") == 0


class LostDirectory(WithWork):
    """The row says that the worktree is removed and its directory is gone, but git still has an entry."""

    failpoints = ("taken-away",)

    command = ("worktrees", "repair")

    async def act(self) -> None:
        shutil.rmtree(self.worktree)
        await self.execute(
            "update conversations set worktree_id = null", "update worktrees set state = 'removed', removal = 'command'"
        )

    async def check(self) -> None:
        await self.here.run(*self.command)
        assert await self.live() == {}
        await self.pushed("threadtree/issue-1", mine="mine")


def _all(kind: type[Any]) -> Iterator[tuple[type[Scenario], str]]:
    yield from ((kind, names) for names in vars(kind).get("failpoints", ()))
    for below in kind.__subclasses__():
        yield from _all(below)


SCENARIOS = [*_all(Scenario)]
"""Each story, with the failpoints at which it is killed; some are reached in two stories, in another state."""
