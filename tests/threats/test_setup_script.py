"""A set-up script runs what a repository's writers and the packages that it installs want; the host is not theirs."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from bot.agents.driver import Launch
from bot.node import setup_script
from bot.node.setup_script import Ended, command_for, run_script, script_of, shown
from bot.redaction import Redactor
from bot.sandbox.bwrap import Bind, agent_argv
from bot.sandbox.process import OutputTail
from bot.thread import notices, reasons
from bot.thread.sanitize import is_inert
from bot.tree import open_clone
from bot.tree.clone.checkout import require_checkout
from bot.tree.clone.clone import clone_lock
from tests.support.git_repositories import SANDBOXES, SEARCH_PATH, GitRepositories
from tests.support.patience import PATIENCE_SECONDS, until_true
from tests.support.sleeping_processes import new_sleep, runs
from tests.threats.conftest import PRELUDE, SECRET, Machine

SCRIPT = ".threadtree/setup"
TRUE = "echo the default branch's\n"


async def set_up(machine: Machine, program: str) -> Ended:
    """Run the program as the default branch's script, then look at the checkout as the host does."""
    world, file = machine.world, machine.world.root / "script"
    known = machine.command("")[-6:]
    text = f"#!{sys.executable}\nimport sys\nsys.argv += {known!r}\n{PRELUDE}{program}"
    file.write_text(text)
    argv = tuple(world.agent_argv(*command_for(text.encode(), file), binds=(Bind(file),)))
    ended = await run_script(Launch(argv, machine.environment(), world.path), PATIENCE_SECONDS)
    assert "Traceback" not in ended.output, ended.output
    async with clone_lock(world.clone) as lock:
        checkout = await require_checkout(lock, world.path)
        await checkout.unblock()
        await checkout.work()
    return ended


async def unsandboxed(world: GitRepositories, text: str) -> Ended:
    """Run the script of a bot with AGENT_SANDBOX=off."""
    file = world.root / "script"
    file.write_text(text)
    environment = {"PATH": SEARCH_PATH, "HOME": str(world.root)}
    launch = Launch(agent_argv(command_for(text.encode(), file)), environment, world.path)
    return await run_script(launch, PATIENCE_SECONDS)


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("kind", ["file", "link", "fifo", "device", "folder", "folder is a link"])
async def test_what_stands_in_the_worktree_is_neither_run_nor_opened(tmp_path: Path, sandbox: str, kind: str) -> None:
    made = GitRepositories.make(tmp_path, "bwrap" if sandbox == "bwrap" else "off", {SCRIPT: TRUE})
    world = await made.with_worktree()
    place = world.path / SCRIPT
    place.unlink()
    match kind:
        case "file":
            place.write_text("echo the branch's\n")
        case "link":
            place.symlink_to("/etc/passwd")
        case "fifo":
            os.mkfifo(place)
        case "device":
            place.symlink_to("/dev/zero")
        case "folder":
            place.mkdir()
        case _:
            place.parent.rmdir()
            place.parent.symlink_to("/etc")
    async with asyncio.timeout(PATIENCE_SECONDS), open_clone(world.clone) as opened:
        assert await script_of(opened) == TRUE.encode()


async def test_an_agent_cannot_make_another_commit_the_default_branchs(machine: Machine) -> None:
    said = machine.attack(
        f"""
(worktree / "{SCRIPT}").parent.mkdir()
(worktree / "{SCRIPT}").write_text("echo the agent's")
git("add", "-A", check=True)
git("commit", "-q", "-m", "evil", check=True)
for args in (("update-ref", "refs/remotes/origin/main", "HEAD"), ("symbolic-ref", "refs/remotes/origin/HEAD", "HEAD"),
             ("replace", "refs/remotes/origin/main", "HEAD"), ("branch", "-f", "main", "HEAD"),
             ("fetch", ".", "+HEAD:refs/remotes/origin/main"), ("push", ".", "+HEAD:refs/remotes/origin/main")):
    print(args[0], git(*args).returncode)
commit = git("rev-parse", "HEAD").stdout.strip()
attempt(lambda: (clone / "packed-refs").write_text(commit + " refs/remotes/origin/main"))
"""
    )
    assert "update-ref 0" not in said
    async with open_clone(machine.world.clone) as opened:
        assert await script_of(opened) is None


async def test_it_reads_no_secret_and_changes_not_itself(machine: Machine) -> None:
    ended = await set_up(
        machine,
        f"""
for path in {[str(secret) for secret in machine.secrets]!r}:
    show(path)
    show("/proc/1/root" + path)
show(other / "notes.txt")
for process in pathlib.Path("/proc").iterdir():
    if process.name.isdigit():
        show(process / "environ")
attempt(lambda: pathlib.Path(__file__).write_text("echo mine"))
attempt(lambda: pathlib.Path(__file__).unlink())
print(os.listdir(pathlib.Path(__file__).parent))
""",
    )
    assert ended.status == 0
    assert SECRET not in ended.output
    assert ended.output.count("refused: ") > len(machine.secrets)
    assert "import sys" in (machine.world.root / "script").read_text()


async def test_nothing_of_it_outlives_it(machine: Machine) -> None:
    sleep = new_sleep()
    ended = await set_up(
        machine,
        f"""
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", {sleep.split()!r})
        os._exit(0)
print("left", flush=True)
""",
    )
    assert ended == Ended(0, "left")
    await until_true(lambda: not runs(sleep))


async def test_a_process_that_keeps_its_output_open_delays_nothing(tmp_path: Path) -> None:
    world = await GitRepositories.make(tmp_path).with_worktree()
    text = f"#!{sys.executable}\nimport os, time\nif os.fork() == 0:\n    os.setsid()\n"
    text += "    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(600)\nprint('left', flush=True)\n"
    try:
        assert await unsandboxed(world, text) == Ended(0, "left")
    finally:
        pid = world.path / "pid"
        await until_true(lambda: pid.exists() and pid.read_text() != "")
        os.kill(int(pid.read_text()), signal.SIGKILL)


async def test_it_plants_nothing_that_runs_on_the_host(machine: Machine) -> None:
    ended = await set_up(
        machine,
        """
evil = f'[core]\\n\\tfsmonitor = "{trap}"\\n\\thooksPath = "{root}/hooks"\\n\\tpager = "{trap}"\\n'
home = pathlib.Path(os.environ["HOME"])
for place in (home / ".gitconfig", clone / "config", admin / "config.worktree", worktree / ".gitconfig"):
    attempt(place.write_text, evil)
for place in (worktree / ".git", admin / "commondir", admin / "gitdir"):
    attempt(place.write_text, "gitdir: " + str(worktree / "evil"))
git("init", "-q", worktree / "nested")
attempt((worktree / "nested/.git/config").write_text, evil)
for place in (admin / "index.lock", admin / "HEAD.lock", worktree / ".gitignore", worktree / ".gitattributes"):
    attempt(os.mkfifo, place)
attempt((admin / "hooks").symlink_to, trap)
""",
    )
    assert ended.status == 0
    await machine.after_the_turn()


async def test_it_cannot_put_another_directory_in_the_place_of_the_worktree(machine: Machine) -> None:
    ended = await set_up(
        machine,
        """
attempt(os.rename, worktree, worktree.with_name("elsewhere"))
attempt(os.rmdir, worktree)
shutil.rmtree(worktree, ignore_errors=True)
attempt(lambda: worktree.symlink_to(other))
attempt(lambda: (worktree.parent / "issue-2").symlink_to(root))
print(os.listdir(worktree))
""",
    )
    assert ended.status == 0
    assert ended.output.count("refused: ") >= 3
    assert machine.world.path.is_dir()
    assert not machine.world.path.is_symlink()
    await machine.after_the_turn()


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_an_endless_output_takes_bounded_memory_and_a_stop_ends_it(
    tmp_path: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest, stop = 0, asyncio.Event()

    class Watched(OutputTail):
        async def _read(self, stream: asyncio.StreamReader) -> None:
            nonlocal longest
            read = 0
            while chunk := await stream.read(1 << 16):
                read += len(chunk)
                self.data = (self.data + chunk)[-self._max_bytes :]
                longest = max(longest, len(self.data))
                if read > 8 << 20:
                    stop.set()

    monkeypatch.setattr(setup_script, "OutputTail", Watched)
    world = await GitRepositories.make(tmp_path, "bwrap" if sandbox == "bwrap" else "off").with_worktree()
    launch = Launch(tuple(world.agent_argv("yes")), {"PATH": SEARCH_PATH}, world.path)
    running = asyncio.create_task(run_script(launch, PATIENCE_SECONDS))
    await stop.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    world.forget(world.path)
    assert longest <= 1 << 16


@pytest.mark.parametrize(
    "piece",
    [
        *("\x1b]", "\x1b[", "\x1b[0;", "\r", "\x1b", "```\n", "~~~~\n</details>\n", "@maria "),
        *("<!-- threadtree:turn=1 -->\n", "> "),
    ],
)
async def test_a_hostile_output_is_bounded_and_inert_in_the_comment(tmp_path: Path, piece: str) -> None:
    world = await GitRepositories.make(tmp_path).with_worktree()
    (world.path / "output").write_text(piece * 100_000 + "\nthe end")
    ended = await unsandboxed(world, "cat output; exit 3\n")
    notice = notices.setup_failed(reasons.program_ended(3), shown(ended.output, Redactor()))
    assert len(notice) < 8_000
    fold = notice.partition("</summary>")[2].rpartition("</details>")[0]
    assert is_inert(fold, "github.com")
    assert fold.rstrip().endswith("the end\n" + fold.split()[0])
