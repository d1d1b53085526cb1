"""The limits are enforced by a cgroup of either version if one can be made, else by setrlimit."""

from pathlib import Path

import pytest

from bot.sandbox.limits import Enforcement, Group, Holder, Limits, enforcement

LIMITS = Limits(processes=7, memory_bytes=1 << 20)


def version_2(tmp_path: Path, enabled: str) -> tuple[Path, Path]:
    """Write the files of a delegated group that the bot reads."""
    own = tmp_path / "cgroup" / "bot.service"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text(enabled)
    (own / "cgroup.subtree_control").chmod(0o444)
    (tmp_path / "membership").write_text("0::/bot.service\n")
    return tmp_path / "cgroup", tmp_path / "membership"


def test_a_delegated_group_holds_processes_and_memory(tmp_path: Path) -> None:
    found = enforcement(LIMITS, *version_2(tmp_path, "cpu memory pids"))
    assert (found.processes, found.memory) == (Holder.CGROUP, Holder.CGROUP)
    *_, group = found.join_group("w1")
    assert (Path(group) / "pids.max").read_text() == "7"
    assert (Path(group) / "memory.max").read_text() == str(1 << 20)
    assert not any("nproc" in word or "data" in word for word in found.limit_argv())


def test_the_pids_hierarchy_of_version_1_holds_processes(tmp_path: Path) -> None:
    (tmp_path / "cgroup" / "pids" / "bot").mkdir(parents=True)
    (tmp_path / "membership").write_text("8:pids:/bot\n4:memory:/bot\n0::/\n")
    found = enforcement(LIMITS, tmp_path / "cgroup", tmp_path / "membership")
    assert (found.processes, found.memory) == (Holder.CGROUP, Holder.RLIMIT)
    *_, group = found.join_group("w1")
    assert group == str(tmp_path / "cgroup" / "pids" / "bot" / "threadtree-w1")
    assert f"--data={1 << 20}" in found.limit_argv()


def test_where_there_is_no_group_the_kernel_counts_for_a_user_and_not_for_root(tmp_path: Path) -> None:
    missing = (tmp_path / "cgroup", tmp_path / "membership")
    assert enforcement(LIMITS, *missing).group is None
    user, root = Enforcement(LIMITS, None, is_root=False), Enforcement(LIMITS, None, is_root=True)
    assert (user.processes, root.processes) == (Holder.RLIMIT, Holder.NOTHING)
    assert "--nproc=7" in user.limit_argv()
    assert user.join_group("w1") == ()


def test_a_group_that_cannot_be_made_is_not_relied_on(tmp_path: Path) -> None:
    cgroups, membership = version_2(tmp_path, "cpu")
    assert enforcement(LIMITS, cgroups, membership).group is None


@pytest.mark.parametrize("kept", [True, False])
def test_a_group_goes_once_nothing_runs_in_it(tmp_path: Path, kept: bool) -> None:
    found = Enforcement(LIMITS, Group(tmp_path, memory=False), is_root=False)
    *_, group = found.join_group("w1")
    (Path(group) / "pids.max").unlink()  # which the kernel's own folders keep to the end
    if kept:
        (Path(group) / "busy").mkdir()
    found.remove_group("w1")
    assert Path(group).exists() == kept
