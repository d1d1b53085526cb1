"""An agent cannot change other conversations' branches, the clone, the remote or the bot's files."""

import pytest

from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import Seen, inspect, require_checkout
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.importing import import_commits
from bot.tree.commit import Committed, commit_all
from bot.tree.create import Created, recreate
from bot.tree.push import Pushed
from tests.support.git_repositories import BOT, RESCUE, git
from tests.threats.conftest import BRANCH, OTHER_BRANCH, Machine


async def test_another_conversations_branch(machine: Machine) -> None:
    world = machine.world
    said = machine.attack(
        f"""
(worktree / "work").write_text("1")
git("add", "-A", check=True)
git("commit", "-q", "-m", "mine", check=True)
head = git("rev-parse", "HEAD").stdout.strip()
for ref in ("refs/heads/{OTHER_BRANCH}", "refs/heads/main", "refs/remotes/origin/main", "refs/remotes/origin/x",
            "refs/threadtree/rescue/x/y", "refs/tags/v1"):
    print(ref, git("update-ref", ref, head).returncode)
git("update-ref", "refs/heads/a", head, check=True)
git("pack-refs", "--all")
print(git("for-each-ref").stdout)
"""
    )
    assert f"refs/remotes/origin/main {128}" in said
    assert any(isinstance(result, Pushed) for result in await machine.after_the_turn())
    every = git(world.clone.path, "for-each-ref", "--format=%(refname)").split()
    # The host made those that hold a commit, whose name is a part of theirs.
    assert every == [
        f"refs/heads/{BRANCH}",
        f"refs/heads/{OTHER_BRANCH}",
        "refs/remotes/origin/main",
        f"refs/remotes/origin/{BRANCH}",
    ]


async def test_another_conversations_branch_under_a_head_that_names_it(machine: Machine) -> None:
    """A worktree without a branch is not brought back to one first: HEAD there is only the agent's claim."""
    machine.attack(
        f"""
git("symbolic-ref", "HEAD", "refs/heads/{OTHER_BRANCH}", check=True)
(worktree / "work").write_text("1")
git("add", "-A", check=True)
git("commit", "-q", "-m", "mine", check=True)
(worktree / "more").write_text("1")
"""
    )
    async with clone_lock(machine.world.clone) as lock:
        done = await commit_all(await require_checkout(lock, machine.world.path), "the turn", BOT, None)
        assert done.sha is not None
        assert await machine.world.clone.commit_at(done.sha) == done.sha
        await import_commits(await require_checkout(lock, machine.world.path), None)


async def test_the_clones_objects(machine: Machine) -> None:
    said = machine.attack(
        """
lender = pathlib.Path((clone / "objects/info/alternates").read_text().strip())
assert any(lender.iterdir())
for file in [*lender.rglob("*"), *clone.rglob("*")]:
    if file.is_file():
        attempt(lambda: os.chmod(file, 0o666))
        attempt(file.unlink)
shutil.rmtree(clone, ignore_errors=True)
"""
    )
    assert "Read-only file system" in said
    await machine.after_the_turn()


async def test_a_push_of_its_own(machine: Machine) -> None:
    before = git(machine.world.remote, "for-each-ref")
    said = machine.attack(
        """
(worktree / "work").write_text("1")
git("add", "-A", check=True)
git("commit", "-q", "-m", "mine", check=True)
for url in ("origin", f"file://{root}/remote.git", str(root / "remote.git")):
    print("push", git("push", url, "HEAD:refs/heads/main").returncode)
"""
    )
    assert "push 0" not in said
    assert git(machine.world.remote, "for-each-ref") == before


NAMES = ("-rf", "--upload-pack=x", "a\nb", ":(top)x", "$(touch ran)", "`touch ran`", "\x1b[2J", "a b;touch ran", "café")


async def test_hostile_file_names(machine: Machine) -> None:
    machine.attack(f"for name in {NAMES!r}: (worktree / name).write_text('1')")
    assert any(isinstance(result, Committed) for result in await machine.after_the_turn())
    assert set(git(machine.world.remote, "ls-tree", "-z", "--name-only", BRANCH).split("\0")) >= set(NAMES)


@pytest.mark.parametrize("name", ["a;touch ran", "$(touch${IFS}ran)", "-d", "HEAD", "refs/heads/x", "@", "x" * 200])
async def test_hostile_branch_names(machine: Machine, name: str) -> None:
    machine.attack(
        f"""
name = {name!r}
git("switch", "-q", "-c", name)
git("update-ref", "refs/heads/" + name, "HEAD")
git("symbolic-ref", "HEAD", "refs/heads/" + name)
(worktree / "work").write_text("1")
git("add", "-A", check=True)
git("commit", "-q", "-m", "mine", check=True)
"""
    )
    await machine.after_the_turn()
    assert machine.world.remote_tip(BRANCH)
    assert len(git(machine.world.remote, "for-each-ref").splitlines()) == 2


@pytest.mark.parametrize(
    "head", ["ref: refs/heads/../../../../.env", "ref: refs/heads/a\nb", "0" * 40, "f" * 40, "", "x" * 9999]
)
async def test_a_head_that_names_no_commit(machine: Machine, head: str) -> None:
    machine.attack(f"(admin / 'HEAD').write_text({head!r})")
    await machine.after_the_turn()
    await machine.world.update()


async def test_objects_git_would_refuse_are_refused_on_the_way_in(machine: Machine) -> None:
    machine.attack(
        """
blob = git("hash-object", "-w", "--stdin", input="[core]\\n\\tfsmonitor = evil\\n", check=True).stdout.strip()
tree = git("mktree", input=f"100644 blob {blob}\\tconfig\\n", check=True).stdout.strip()
entry = b"40000 .git\\0" + bytes.fromhex(tree)
make = ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"]
raw = subprocess.run(make, capture_output=True, check=True, input=entry).stdout.decode().strip()
commit = git("commit-tree", "-p", "HEAD", "-m", "evil", raw, check=True).stdout.strip()
git("update-ref", "HEAD", commit, check=True)
"""
    )
    results = await machine.after_the_turn()
    assert any(".git" in str(result) and isinstance(result, Exception) for result in results), results


async def test_a_commit_with_a_hole_is_refused_on_the_way_in(machine: Machine) -> None:
    machine.attack(
        """
raw = f"tree {'1' * 40}\\nauthor a <a@b> 1 +0000\\ncommitter a <a@b> 1 +0000\\n\\nhole\\n"
commit = git("hash-object", "-t", "commit", "-w", "--literally", "--stdin", input=raw, check=True).stdout.strip()
(clone / "refs/heads/threadtree/issue-1").write_text(commit + "\\n")
"""
    )
    world = machine.world
    before = await world.clone.commit_at(f"refs/heads/{BRANCH}")
    results = await machine.after_the_turn()
    assert any(isinstance(result, Exception) for result in results)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") == before


BREAKING = (
    "(admin / 'HEAD').write_text('f' * 40)",
    "(admin / 'HEAD').write_text('nonsense')",
    "(admin / 'HEAD').unlink()",
    "(admin / 'index').write_text('nonsense')",
    "shutil.rmtree(clone / 'objects')",
    "(clone / 'refs/heads/threadtree/issue-1').write_text('f' * 40)",
)


@pytest.mark.parametrize("breaking", BREAKING)
async def test_a_worktree_that_broke_itself_is_made_again(machine: Machine, breaking: str) -> None:
    world = machine.world
    (world.path / "precious").write_text("1")
    machine.attack(breaking)
    assert isinstance(await inspect(world.clone, world.path), Missing)
    async with clone_lock(world.clone) as lock:
        made = await recreate(lock, world.path, BRANCH, None, RESCUE)
    assert isinstance(made, Created)
    assert (made.branch, made.tip) == (BRANCH, world.remote_tip("main"))
    assert isinstance(await inspect(world.clone, world.path), Seen)
    assert list((world.clone.data_dir / "kept").glob("*/precious"))


def test_the_system_and_other_homes(machine: Machine) -> None:
    said = machine.attack(
        """
for path in ("/usr/bin/evil", "/etc/passwd", "/etc/evil", "/evil", "/dev/evil", "/proc/sys/kernel/core_pattern",
             "/proc/sysrq-trigger", data / "evil", data / "homes/evil", other / "evil", data / "worktrees/octo/evil",
             clone / "worktrees/evil", sys.executable):
    attempt(lambda: open(path, "a").close())
print(subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True).returncode, "unshare")
print(subprocess.run(["mount", "-o", "remount,rw", "/usr"], capture_output=True).returncode, "mount")
"""
    )
    assert said.count("refused: ") == 13, said
    assert "0 unshare" not in said
    assert "0 mount" not in said


async def test_a_rewritten_branch_keeps_its_old_commits(machine: Machine) -> None:
    world = machine.world
    mine = world.agent_commits({"a": "1"})
    await world.bring_home()
    machine.attack("git('reset', '-q', '--hard', 'HEAD~1', check=True)")
    async with clone_lock(world.clone) as lock:
        await import_commits(await require_checkout(lock, world.path), BRANCH)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") != mine
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}@{{1}}") == mine


async def test_its_own_work_is_not_hindered(machine: Machine) -> None:
    """The sandbox allows ordinary work with git."""
    said = machine.attack(
        """
def ok(*args): git(*args, check=True)
(worktree / "a").write_text("1"); ok("add", "a"); ok("commit", "-q", "-m", "a")
(worktree / "a").write_text("2"); ok("stash", "-q"); ok("stash", "pop", "-q"); ok("commit", "-qam", "b")
ok("switch", "-q", "-c", "idea"); (worktree / "c").write_text("3"); ok("add", "c"); ok("commit", "-q", "-m", "c")
ok("switch", "-q", "-"); (worktree / "d").write_text("4"); ok("add", "d"); ok("commit", "-q", "-m", "d")
ok("cherry-pick", "idea"); ok("rebase", "-q", "origin/main"); ok("merge", "-q", "idea", "--no-edit")
ok("commit", "-q", "--amend", "-m", "e"); ok("reset", "-q", "--soft", "HEAD~2"); ok("commit", "-q", "-m", "f")
ok("branch", "-q", "-D", "idea"); ok("gc", "-q"); ok("fsck"); ok("config", "--global", "user.name", "Me")
ok("tag", "v1"); ok("config", "core.hooksPath", ".husky"); ok("describe", "--tags")
ok("sparse-checkout", "set", "--no-cone", "/*")
(clone / "hooks/pre-commit").write_text("x"); (clone / "info/exclude").write_text("/scratch\\n")
(worktree / "scratch").touch()
assert "scratch" not in git("status", "--porcelain").stdout
print(git("log", "--oneline", "origin/main").stdout, pathlib.Path("/tmp/x").write_text("scratch"))
"""
    )
    assert said
    # The clone, and what the host sees of the worktree, has nothing of that.
    assert git(machine.world.clone.path, "tag", "--list") == ""
    assert "core.hookspath" not in git(machine.world.clone.path, "config", "--list", "--local")
    async with clone_lock(machine.world.clone) as lock:
        seen = await (await require_checkout(lock, machine.world.path)).work()
    assert [change.name for change in seen] == ["scratch"]
