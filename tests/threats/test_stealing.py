"""An agent cannot read other processes, other conversations or the bot's secrets by any path."""

import ast
import asyncio
import os
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from bot.model import IssueBranch
from bot.tree.clone.checkout import require_checkout
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.packing import pack, pack_whole
from bot.tree.commit import commit_all
from bot.tree.git.errors import GitError
from bot.tree.push import Push, push
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.save import save_rescue
from tests.support.git_repositories import BOT, git, unchecked
from tests.support.patience import PATIENCE_SECONDS
from tests.threats.conftest import BRANCH, SECRET, Machine


def test_environments_and_memory_of_other_processes(machine: Machine) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], env={"TOKEN": SECRET}, stdin=subprocess.PIPE) as bot:
        said = machine.attack(
            f"""
for process in pathlib.Path("/proc").iterdir():
    if process.name.isdigit():
        for name in ("environ", "cmdline", "maps"):
            show(process / name)
for name in ("root", "cwd", "environ", "mem", "fd"):
    print(attempt(os.readlink if name in ("root", "cwd") else os.listdir, "/proc/{bot.pid}/" + name))
attempt(os.kill, {bot.pid}, 9)
print(len([name for name in os.listdir("/proc") if name.isdigit()]), "processes")
"""
        )
        assert bot.poll() is None
        assert bot.stdin is not None
        bot.stdin.close()
    assert SECRET not in said
    assert os.fsdecode(Path(sys.executable)) in said, "it did not see even itself"


def test_the_bots_own_environment_and_arguments(machine: Machine) -> None:
    argv = machine.command("print(dict(os.environ))")
    environment = machine.environment() | {"MODEL_KEY": "given-by-name"}
    done = subprocess.run(argv, cwd=machine.world.path, env=environment, capture_output=True, text=True, check=True)
    assert "given-by-name" in done.stdout
    assert not any("given-by-name" in word for word in argv), "argv is read by every user of the machine"


def test_every_path_to_a_secret(machine: Machine) -> None:
    said = machine.attack(
        f"""
for path in {[str(secret) for secret in machine.secrets]!r}:
    show(path)
    show("/proc/1/root" + path)
    show("/proc/self/root" + path)
    show(worktree / ".." / ".." / ".." / ".." / ".." / path.removeprefix("{machine.world.root}/"))
show(other / "notes.txt")
print(sorted(os.listdir(data)), os.listdir(data / "worktrees/octo/hello"), os.listdir(data / "homes"))
print(os.listdir(clone / "worktrees"), attempt(os.listdir, data / "private"))
for path in ("/etc/shadow", "/root/.ssh/id_rsa", "/root/.gitconfig", "/run", "/home", "/sys/kernel", "/var/lib"):
    show(path)
found = subprocess.run(["grep", "-rs", "{SECRET[:4]}" + "{SECRET[4:]}", str(root)], capture_output=True, text=True)
print(found.stdout)
"""
    )
    listing = "['homes', 'private', 'repos', 'worktrees'] ['issue-1'] ['1']"
    assert listing in said
    assert SECRET not in said
    assert "root:" not in said.split("/etc/shadow")[1].split("\n")[0]


def test_private_keys_of_the_machine(machine: Machine) -> None:
    said = machine.attack(
        """
for folder in ("ssl", "pki", "pki/tls", "pki/java"):
    print("there:", os.listdir("/etc/" + folder) if os.path.isdir("/etc/" + folder) else [])
found = subprocess.run(["grep", "-rslE", "BEGIN [A-Z ]*PRIVATE KEY", "/etc"], capture_output=True, text=True)
print("keys:", found.stdout.split())
"""
    )
    shown = {name for line in re.findall("there: (.*)", said) for name in ast.literal_eval(line)}
    assert shown <= {"certs", "cert.pem", "openssl.cnf", "ca-trust", "cacerts", "java", "tls"}
    assert "certs" in shown
    assert "keys: []" in said


async def test_a_link_out_of_the_tree_is_committed_as_a_link(machine: Machine) -> None:
    machine.attack(
        f"""
(worktree / "link").symlink_to("{machine.secrets[0]}")
(worktree / "folder").symlink_to("{machine.world.root}")
(worktree / "up").symlink_to("../" * 12 + "{machine.secrets[0]}".lstrip("/"))
git("add", "link")
(worktree / "README.md").unlink()
(worktree / "README.md").symlink_to("{machine.other}/notes.txt")
"""
    )
    await machine.after_the_turn()
    assert git(machine.world.remote, "ls-tree", "-r", BRANCH).count("120000") == 4


async def test_git_folders_that_lead_to_a_secret(machine: Machine) -> None:
    secret = machine.secrets[0]
    machine.attack(
        f"""
secret = "{secret}"
for file in (admin / "HEAD", admin / "index", admin / "ORIG_HEAD", clone / "packed-refs", admin / "locked",
             clone / "refs/heads/{BRANCH}", clone / "info/exclude", clone / "objects/info/alternates"):
    attempt(file.parent.mkdir, 0o755, True, True)
    attempt(file.unlink)
    attempt(file.symlink_to, secret)
attempt(os.rename, clone / "refs/heads", clone / "refs/was")
attempt((clone / "refs/heads").symlink_to, "{machine.world.root}")
"""
    )
    results = await machine.after_the_turn()
    assert SECRET not in "".join(map(str, results))


async def test_folders_swapped_for_links_lead_no_mount_astray(machine: Machine) -> None:
    """The next mount must not follow a link that this turn's agent left."""
    machine.world.home.mkdir(parents=True)
    before = sorted(str(path) for path in machine.world.root.rglob("*") if "private" not in path.parts)
    machine.attack(
        """
for folder in (clone / "refs", clone / "refs/remotes", clone / "refs/tags", clone / "worktrees", admin, clone / "hooks",
               clone / "config", clone / "objects", worktree, worktree / ".git", admin / "gitdir", clone):
    for target in ("/oldroot" + str(root), "/newroot", str(root)):
        away = folder.with_name(folder.name + "-away")
        if attempt(os.rename, folder, away) is None and not os.path.lexists(folder):
            attempt(folder.symlink_to, target)
"""
    )
    await machine.after_the_turn()
    assert sorted(str(path) for path in machine.world.root.rglob("*") if "private" not in path.parts) == before


def test_sockets_of_the_host(machine: Machine, tmp_path: Path) -> None:
    folder = machine.world.root / "data" / "postgres"
    with socket.socket(socket.AF_UNIX) as database, socket.socket(socket.AF_UNIX) as hidden, socket.socket() as api:
        database.bind(os.path.relpath(folder / ".s.PGSQL.5432"))
        hidden.bind(f"\0threadtree-test-{os.getpid()}")
        api.bind(("127.0.0.1", 0))
        for listening in (database, hidden, api):
            listening.listen()
        said = machine.attack(
            f"""
for family, address in ((socket.AF_UNIX, "{folder}/.s.PGSQL.5432"), (socket.AF_UNIX, "\\0threadtree-test-{os.getpid()}"),
                        (socket.AF_INET, ("127.0.0.1", {api.getsockname()[1]})), (socket.AF_INET, ("169.254.169.254", 80))):
    with socket.socket(family) as one:
        one.settimeout(2)
        attempt(lambda: (one.connect(address), print("connected", address)))
"""  # noqa: E501
        )
    assert said.count("refused: ") == 4, said


async def test_a_pipe_in_the_place_of_head_stops_no_other_conversation(machine: Machine) -> None:
    machine.attack(
        """
(admin / "HEAD").unlink()
os.mkfifo(admin / "HEAD")
"""
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await machine.world.update()
        await machine.everybody_else_is_unharmed()


ALL_OBJECTS = """
for line in git("cat-file", "--batch-all-objects", "--batch-check").stdout.splitlines():
    name, kind, _ = line.split()
    if kind != "tree":
        print(git("cat-file", kind, name).stdout)
"""


async def test_what_another_conversation_has_not_published(machine: Machine) -> None:
    world, path = machine.world, machine.other.with_name("issue-3")
    await world.created(IssueBranch(3), path)
    branch = "threadtree/issue-3"
    (path / "fix.txt").write_text("embargoed fix")
    async with clone_lock(world.clone) as lock:
        await commit_all(await require_checkout(lock, path), "unpublished", BOT, None)
    (path / "draft.txt").write_text("rescued draft")
    async with clone_lock(world.clone) as lock:
        label = RescueLabel(3, branch, (3,), datetime.now(UTC))
        assert (await save_rescue(lock, path, label))[0] is not None
    (path / "draft.txt").unlink()
    told = machine.attack(ALL_OBJECTS)
    assert "hello" in told
    assert not any(words in told for words in ("embargoed", "unpublished", "rescued draft"))

    async with clone_lock(world.clone) as lock:
        for _ in range(2):
            await pack(lock)
            await pack_whole(lock, "main", 0)
            os.utime(world.clone.path / "threadtree-packed", (0, 0))
    assert "embargoed" not in machine.attack(ALL_OBJECTS)

    async with clone_lock(world.clone) as lock:
        done = await push(await require_checkout(lock, path), Push(branch, "parked", BOT), unchecked)
    assert done.how == "pushed"
    told = machine.attack(f'{ALL_OBJECTS}\nprint(git("show", "origin/{branch}:fix.txt", check=True).stdout)')
    assert told.rstrip().endswith("embargoed fix")
    assert "rescued draft" not in told
    world.forget(path)


def has(repository: Path, name: str) -> bool:
    return subprocess.run(["git", "cat-file", "-e", name], cwd=repository, capture_output=True).returncode == 0


async def test_a_commit_of_another_conversation_by_its_name(machine: Machine) -> None:
    world, path = machine.world, machine.other.with_name("issue-3")
    await world.created(IssueBranch(3), path)
    (path / "fix.txt").write_text("embargoed fix")
    async with clone_lock(world.clone) as lock:
        made = await commit_all(await require_checkout(lock, path), "unpublished", BOT, None)
    assert made.sha is not None
    blob = git(world.clone.path, "rev-parse", f"{made.sha}:fix.txt")
    machine.attack(
        f"""
tree = git("rev-parse", "HEAD^{{tree}}", check=True).stdout.strip()
text = f"tree {{tree}}\\nparent {made.sha}\\nauthor a <a> 0 +0000\\ncommitter a <a> 0 +0000\\n\\nmine\\n"
on_it = git("hash-object", "-t", "commit", "-w", "--stdin", input=text, check=True).stdout.strip()
(clone / "shallow").write_text(on_it + "\\n")
(clone / "refs/heads/{BRANCH}").write_text(on_it + "\\n")
"""
    )
    results = await machine.after_the_turn()
    assert any(isinstance(result, GitError) for result in results), results
    assert not has(world.remote, made.sha)
    machine.attack(
        f"""
(clone / "shallow").unlink(missing_ok=True)
listed = git("ls-tree", "HEAD~", check=False).stdout or git("ls-tree", "origin/main").stdout
tree = git("mktree", "--missing", input=listed + "100644 blob {blob}\\tleak.txt\\n", check=True).stdout.strip()
leak = git("commit-tree", "-p", "origin/main", "-m", "mine", tree, check=True).stdout
(clone / "refs/heads/{BRANCH}").write_text(leak)
"""
    )
    results = await machine.after_the_turn()
    assert any(isinstance(result, GitError) for result in results), results
    assert not has(world.remote, blob)
    world.forget(path)
