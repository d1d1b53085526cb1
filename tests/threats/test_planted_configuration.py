"""Configuration planted in the worktree or in git's folders runs nothing on the host, in this turn or the next."""

from pathlib import Path

import pytest

from bot.tree.push import Pushed
from tests.support.git_repositories import git
from tests.threats.conftest import Machine

# Every key that names a program that git runs while it examines a worktree, commits, merges or pushes.
_KEYS = """
keys = {
    "core.fsmonitor": trap, "core.hooksPath": root / "hooks", "core.editor": trap, "core.pager": trap,
    "core.sshCommand": trap, "core.askPass": trap, "core.alternateRefsCommand": trap, "gpg.program": trap,
    "commit.gpgSign": "true", "credential.helper": trap, "filter.evil.clean": trap, "filter.evil.smudge": trap,
    "filter.evil.process": trap, "diff.evil.command": trap, "diff.evil.textconv": trap, "merge.evil.driver": trap,
    "diff.external": trap, "uploadpack.packObjectsHook": trap, "protocol.ext.allow": "always",
    "remote.origin.url": f"ext::{trap}", "remote.origin.receivepack": trap, "remote.origin.uploadpack": trap,
    "url.ext::sh.insteadOf": "file://", "submodule.recurse": "true", "core.worktree": root, "alias.status": f"!{trap}",
}
text = "".join(f'[{section}]\\n\\t{key} = "{value}"\\n' for section, key, value in (
    (*(('%s "%s"' % tuple(name.rsplit(".", 1)[0].split(".", 1))) if name.count(".") > 1 else name.split(".")[0],),
     name.rsplit(".", 1)[1], value) for name, value in keys.items()))
"""


def test_the_trap_springs_where_nothing_holds_it(machine: Machine, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "free")
    git(tmp_path / "free", "config", "core.fsmonitor", str(machine.trap))
    git(tmp_path / "free", "status")
    assert machine.fired()
    machine.ran.unlink()


async def test_planted_in_the_clone(machine: Machine) -> None:
    machine.attack(
        _KEYS
        + """
for name, value in keys.items():
    git("config", name, value, check=True)
attempt(lambda: (clone / "config").write_text(text))
attempt(lambda: (clone / "config").unlink())
attempt(lambda: os.rename(clone / "HEAD", clone / "config"))
attempt(lambda: (admin / "config.worktree").write_text(text))
git("config", "extensions.worktreeConfig", "true")
"""
    )
    await machine.after_the_turn()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
async def test_something_else_in_the_place_of_settings(machine: Machine, kind: str) -> None:
    machine.attack(
        f"""
import shutil
(worktree / "settings").mkdir()
(worktree / "settings/config").write_text("[core]\\n\\tfsmonitor = " + str(trap) + "\\n")
for place in (clone / "config", clone / "hooks", clone / "info", clone / "refs/tags"):
    shutil.rmtree(place, ignore_errors=True); place.unlink(missing_ok=True)
    match "{kind}":
        case "link": place.symlink_to(worktree / "settings" / ("config" if place.name == "config" else "."))
        case "folder": place.write_text("x") if place.name != "config" else place.mkdir()
        case "pipe": os.mkfifo(place)
"""
    )
    assert any(isinstance(result, Pushed) for result in await machine.after_the_turn())
    assert not machine.fired()
    assert "0\n" in machine.attack("print(git('config', 'a.b', 'c').returncode, git('tag', 'v2').returncode)")


async def test_planted_in_its_home_and_in_the_worktree(machine: Machine) -> None:
    machine.attack(
        _KEYS
        + """
home = pathlib.Path(os.environ["HOME"])
(home / ".gitconfig").write_text(text)
(home / ".config/git").mkdir(parents=True)
(home / ".config/git/config").write_text(text)
for name in ("gitconfig", ".gitconfig", "config"):
    (worktree / name).write_text(text)
(worktree / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\\n")
(worktree / ".gitmodules").write_text(f'[submodule "x"]\\n\\tpath = x\\n\\turl = ext::{trap}\\n\\tupdate = !{trap}\\n')
"""
    )
    await machine.after_the_turn()


@pytest.mark.parametrize("where", ["clone / 'hooks'", "worktree / '.git' / 'hooks'", "admin / 'hooks'"])
async def test_hooks(machine: Machine, where: str) -> None:
    machine.attack(
        f"""
hooks = {where}
for name in ("pre-commit", "post-commit", "pre-push", "post-checkout", "post-merge", "reference-transaction",
             "post-index-change", "prepare-commit-msg", "commit-msg", "pre-auto-gc", "fsmonitor-watchman"):
    attempt(lambda: hooks.mkdir(exist_ok=True))
    attempt(lambda: (hooks / name).symlink_to(trap))
(worktree / "work").write_text("1")
"""
    )
    await machine.after_the_turn()


async def test_the_git_file_cannot_be_replaced(machine: Machine) -> None:
    said = machine.attack(
        _KEYS
        + """
evil = worktree / "evil"
git("init", "-q", evil)
(evil / ".git/config").write_text(text)
def replace(): (worktree / ".git").write_text(f"gitdir: {evil}/.git")
def unlink(): (worktree / ".git").unlink()
def over(): os.rename(evil / ".git", worktree / ".git")
def away(): os.rename(worktree, worktree.with_name("gone"))
def pointers():
    for name in ("gitdir", "commondir"):
        attempt(lambda: (admin / name).write_text(str(evil)))
        attempt(lambda: (admin / name).unlink())
        attempt(lambda: (admin / name).rename(admin / "x"))
for action in (replace, unlink, over, away, pointers):
    attempt(action)
"""
    )
    assert said.count("refused") == 10, said
    assert not any(isinstance(result, Exception) for result in await machine.after_the_turn())


async def test_a_nested_repository_is_not_asked_on_the_host(machine: Machine) -> None:
    machine.attack(
        _KEYS
        + """
for name in ("nested", "deep/er/nested"):
    (worktree / name).parent.mkdir(parents=True, exist_ok=True)
    git("init", "-q", worktree / name, check=True)
    (worktree / name / "file").write_text("1")
    git("-C", worktree / name, "add", "-A", check=True)
    git("-C", worktree / name, "commit", "-q", "-m", "nested", check=True)
    git("-C", worktree, "update-index", "--add", "--cacheinfo", "160000," + git("-C", worktree / name, "rev-parse", "HEAD").stdout.strip() + "," + name)
    (worktree / name / ".git/config").write_text(text.replace("[core]", "[core]\\n\\trepositoryformatversion = 0"))
"""  # noqa: E501
    )
    await machine.after_the_turn()


async def test_a_hostile_submodule_is_not_fetched(machine: Machine) -> None:
    machine.attack(
        """
sha = git("rev-parse", "HEAD").stdout.strip()
git("update-index", "--add", "--cacheinfo", f"160000,{sha},sub", check=True)
(worktree / ".gitmodules").write_text(f'[submodule "../../../evil"]\\n\\tpath = sub\\n\\turl = -u{trap}\\n')
git("add", ".gitmodules", check=True)
git("commit", "-q", "-m", "submodule", check=True)
"""
    )
    results = await machine.after_the_turn()
    assert any("gitmodules" in str(result) for result in results), results


async def test_alternates_elsewhere_show_the_host_nothing(machine: Machine) -> None:
    git(machine.world.person, "commit", "-q", "--allow-empty", "-m", "private")
    private = git(machine.world.person, "rev-parse", "HEAD")
    machine.attack(
        f"""
(clone / "objects/info/alternates").write_text("{machine.world.person}/.git/objects\\n")
attempt(lambda: (admin / "HEAD").write_text("{private}\\n"))
"""
    )
    await machine.after_the_turn()
    assert await machine.world.clone.commit_at(private) is None


async def test_an_ext_remote_runs_nowhere(machine: Machine) -> None:
    machine.attack(
        """
git("remote", "add", "evil", f"ext::{trap}")
print(git("-c", "protocol.ext.allow=always", "ls-remote", f"ext::{trap}").returncode)
(worktree / "work").write_text("1")
"""
    )
    await machine.after_the_turn()


async def test_what_a_hostile_filter_makes_is_only_its_own_commit(machine: Machine) -> None:
    """The bot's git runs in the sandbox too: a planted program there sees only what the agent saw."""
    seen = machine.world.path / "seen"
    machine.attack(
        f"""
git("init", "-q", worktree / "nested", check=True)
spy = worktree / "spy"
spy.write_text("#!/bin/sh\\nls -a / {machine.world.root} {machine.world.root}/data > {seen} 2>&1; env >> {seen}\\n")
spy.chmod(0o755)
(worktree / "nested/f").write_text("1")
git("-C", worktree / "nested", "add", "-A", check=True)
git("-C", worktree / "nested", "commit", "-q", "-m", "x", check=True)
git("-C", worktree, "add", "nested", check=True)
git("-C", worktree, "commit", "-q", "-m", "x", check=True)
git("-C", worktree / "nested", "config", "core.fsmonitor", spy, check=True)
git("-C", worktree / "nested", "config", "filter.spy.clean", spy, check=True)
(worktree / "nested/.gitattributes").write_text("* filter=spy\\n")
(worktree / "nested/f").write_text("2")
"""
    )
    await machine.after_the_turn()
    text = seen.read_text()
    assert "GIT_CONFIG_COUNT" in text, "the filter did not run at all"
    assert ".env" not in text
    assert "postgres" not in text
