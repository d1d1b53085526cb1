"""The sandbox: whether this machine allows it, what a command sees in it, and which users it works for."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bot.sandbox.bwrap import Bind, Bwrap, NoSandbox, Unusable, command_of, sandbox_for
from bot.sandbox.limits import Enforcement, Limits
from bot.sandbox.system import UnsafeCommandError
from tests.support.git_repositories import SEARCH_PATH, GitRepositories, output, usable_sandbox

NOBODY = 65534


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    world.home.mkdir(parents=True)
    return world


def sandbox_of(world: GitRepositories) -> Bwrap:
    assert isinstance(world.clone.git.sandbox, Bwrap)
    return world.clone.git.sandbox


def run(world: GitRepositories, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    return output(argv, world.path, {"PATH": SEARCH_PATH, "HOME": str(world.home)} | dict(environment or {}))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_setting_off_means_no_sandbox(tmp_path: Path) -> None:
    assert isinstance(sandbox_for("off", tmp_path, SEARCH_PATH), NoSandbox)


def test_without_bubblewrap_the_remedy_is_named(tmp_path: Path) -> None:
    sandbox = sandbox_for("auto", tmp_path, SEARCH_PATH)
    assert isinstance(sandbox, Bwrap)
    answer = replace(sandbox, bwrap=str(tmp_path / "bwrap")).probe()
    assert isinstance(answer, Unusable)
    assert "not installed" in answer.why
    assert "bubblewrap" in answer.what_to_do
    assert "AGENT_SANDBOX=off" in answer.what_to_do


def test_a_bubblewrap_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = program(tmp_path / "bwrap", "#!/bin/sh\necho bubblewrap 0.4.1\n")
    answer = replace(usable_sandbox(tmp_path), bwrap=str(old)).probe()
    assert isinstance(answer, Unusable)
    assert "0.4.1" in answer.why


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
            "user.max_user_namespaces",
        ),
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns"),
        ("bwrap: No permissions to create a new namespace", "unprivileged_userns_clone"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
    ],
)
def test_where_namespaces_are_not_allowed_the_remedy_is_named(tmp_path: Path, said: str, remedy: str) -> None:
    script = f'#!/bin/sh\n[ "$1" = --version ] && exec echo bubblewrap 0.8.0\necho "{said}" >&2\nexit 1\n'
    answer = replace(usable_sandbox(tmp_path), bwrap=str(program(tmp_path / "bwrap", script))).probe()
    assert isinstance(answer, Unusable)
    assert said in answer.why
    assert remedy in answer.what_to_do


def test_no_sandbox_inside_a_sandbox_is_what_a_forbidden_namespace_really_looks_like(world: GitRepositories) -> None:
    inner = sandbox_of(world).bwrap
    argv = world.agent_argv(inner, "--unshare-user", "--ro-bind", "/usr", "/usr", "true")
    done = subprocess.run(argv, cwd=world.path, env={"PATH": SEARCH_PATH}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ENOSPC" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_has_the_same_sandbox(tmp_path: Path) -> None:
    """Check that the kernel counts the processes: a bounded fork bomb reaches the limit."""
    sandbox = usable_sandbox(tmp_path)
    mine = replace(sandbox, enforcement=Enforcement(Limits(processes=16), None, is_root=False))
    tmp_path.chmod(0o755)
    command = 'id -u; i=0; while [ $i -lt 40 ]; do sleep 3 & i=$((i+1)); done; echo "all of them"'
    argv = (*mine.probe_argv(), "sh", "-c", command)
    done = subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == str(NOBODY), done.stderr
    assert "all of them" not in done.stdout
    assert "fork" in done.stderr.lower()


def test_the_agents_command_can_still_be_told_from_its_argv(world: GitRepositories) -> None:
    assert command_of(world.agent_argv("agent", "--flag", "--", "x")) == ("agent", "--flag", "--", "x")


def test_nothing_of_the_environment_but_what_is_given(world: GitRepositories) -> None:
    told = dict(line.split("=", 1) for line in run(world, world.agent_argv("env"), {"NAMED": "value"}).splitlines())
    assert told.pop("PWD") == str(world.path)
    assert told == {"PATH": SEARCH_PATH, "HOME": str(world.home), "NAMED": "value"}


def test_the_paths_inside_are_those_outside_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "known").symlink_to(tmp_path / "real")
    sandbox = usable_sandbox(tmp_path / "known")
    (tmp_path / "real" / "file").write_text("hidden")
    told = output((*sandbox.probe_argv(), "ls", str(tmp_path / "known") + "/"), tmp_path, {"PATH": SEARCH_PATH})
    assert told == ""


async def test_a_turn_works_where_data_dir_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real")
    world = GitRepositories.make(tmp_path, "bwrap")
    await world.created()
    mine = world.agent_commits({"a": "1"})
    await world.bring_home()
    assert await world.clone.commit_at("refs/heads/threadtree/issue-1") == mine


def test_a_wrapper_and_more_binds_for_what_stands_in_front_of_the_agent(world: GitRepositories) -> None:
    (world.root / "run").mkdir()
    (world.root / "run" / "socket").write_text("talk to me")
    argv = sandbox_of(world).agent_argv(
        world.view(),
        ("sh", "-c", f"nice; cat {world.root}/run/socket; echo x > {world.root}/run/y"),
        world.home,
        world.path,
        wrapper=("nice", "-n", "7"),
        binds=(Bind(world.root / "run", writable=True),),
    )
    assert run(world, argv).splitlines() == [str(os.nice(0) + 7), "talk to me"]
    assert (world.root / "run" / "y").read_text() == "x\n"


def test_a_read_only_sandbox_lets_an_agent_read_all_and_change_nothing(world: GitRepositories) -> None:
    script = (
        "git log -1 --format=%s; git status --porcelain; cat README.md >/dev/null && echo read; "
        f"for at in {world.path} {world.clone.path} {world.clone.path}/refs/heads {world.clone.path}/objects "
        f"{world.view().admin}; do (echo x > $at/planted) 2>/dev/null && echo wrote $at; done; "
        "git commit -q --allow-empty -m mine 2>/dev/null && echo committed; git update-ref refs/heads/x HEAD "
        "2>/dev/null && echo moved; echo mine > $HOME/note && echo noted; echo x > /tmp/scratch && echo scratched"
    )
    argv = sandbox_of(world).agent_argv(world.view(), ("sh", "-c", script), world.home, world.path, read_only=True)
    assert run(world, argv).splitlines()[1:] == ["read", "noted", "scratched"]
    assert not (world.path / "planted").exists()


def test_a_program_is_readable_with_what_it_is_installed_in(world: GitRepositories) -> None:
    """As npm installs: a link to a script in node_modules, which env(1) runs with a `node` from another prefix."""
    prefix, node = world.root / "prefix", world.root / "node"
    package = prefix / "lib" / "node_modules" / "agent"
    program(package / "cli.js", "#!/usr/bin/env node\nthe agent's script")
    (package / "part.js").write_text("a part")
    (prefix / "bin").mkdir()
    (prefix / "bin" / "agent").symlink_to("../lib/node_modules/agent/cli.js")
    program(node / "bin" / "node", f'#!/bin/sh\ncat "$1" {package}/part.js {node}/lib/x\n')
    (node / "lib").mkdir()
    (node / "lib" / "x").write_text("of node")
    path = f"{prefix}/bin:{node}/bin:{SEARCH_PATH}"
    sandbox = replace(sandbox_of(world), search_path=path)
    for command in ("agent", str(prefix / "bin" / "agent")):
        argv = sandbox.agent_argv(world.view(), (command,), world.home, world.path)
        told = run(world, argv, {"PATH": path})
        assert "the agent's script" in told
        assert told.endswith("a partof node")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="there is no virtual environment")
def test_a_virtual_environment_comes_with_the_python_it_was_made_from(world: GitRepositories) -> None:
    told = run(world, world.agent_argv(sys.executable, "-c", "import sys, acp; print(sys.prefix, sys.base_prefix)"))
    assert told == f"{sys.prefix} {sys.base_prefix}"


def test_what_a_command_names_by_absolute_path_is_readable_and_no_more(world: GitRepositories) -> None:
    config = world.root / "agent.toml"
    config.write_text("settings")
    (world.root / "beside").write_text("not yours")
    argv = world.agent_argv("sh", "-c", f'cat "$0"; echo; ls -A {world.root}', str(config))
    assert run(world, argv).splitlines() == ["settings", "agent.toml", "data"]


@pytest.mark.parametrize("named", ["/", "data", "data/homes/2"])
def test_a_command_that_would_show_the_bots_data_is_refused(world: GitRepositories, named: str) -> None:
    (world.root / "data" / "homes" / "2").mkdir()
    with pytest.raises(UnsafeCommandError, match="own data"):
        world.agent_argv("agent", str(world.root / named))
