"""Every state in which an agent can leave a worktree, and what must be the same after a restore."""

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.git_repositories import GitRepositories

BRANCH = "threadtree/issue-1"
BASE = {
    "README.md": "hello\n",
    "dir/a": "a\n",
    "dir/b": "b\n",
    "other/c": "c\n",
    "run.sh": "#!/bin/sh\n",
    ".gitignore": "ignored*\nbuild/\n",
    ".gitattributes": "*.bat text eol=crlf\n*.id ident\n*.txt text=auto\n*.u16 working-tree-encoding=UTF-16LE\n"
    "*.lfs filter=lfs -text\n",
    "win.bat": "echo\n",
    "dos.bat": "echo\n",
    "x.id": "$Id$\n",
    "t.txt": "one\n",
}


@dataclass(frozen=True, slots=True)
class State:
    """A state; `index` and `tip` say whether they are restored too, and not only the files."""

    build: Callable[[GitRepositories], None]
    index: bool = True
    tip: bool = True

    @property
    def name(self) -> str:
        return self.build.__name__.strip("_")


def photo(path: Path) -> dict[str, tuple[str, bytes]]:
    """Return every file of a worktree with its kind and its bytes, without git's own files."""
    found: dict[str, tuple[str, bytes]] = {}
    for folder, directories, names in os.walk(path):
        for name in (*names, *(one for one in directories if Path(folder, one).is_symlink())):
            file = Path(folder, name)
            mode = file.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[str(file.relative_to(path))] = ("link", os.fsencode(file.readlink()))
            elif stat.S_ISREG(mode) and file != path / ".git":
                kind = "executable" if mode & stat.S_IXUSR else "file"
                found[str(file.relative_to(path))] = (kind, file.read_bytes())
    return found


def write(world: GitRepositories, name: str, content: str | bytes = "new\n") -> None:
    file = world.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def staged(world: GitRepositories) -> None:
    write(world, "README.md", "staged\n")
    write(world, "new/staged")
    world.agent("add", "-A")


def unstaged(world: GitRepositories) -> None:
    write(world, "README.md", "unstaged\n")
    write(world, "dir/a", b"\0\xff binary")
    write(world, "dir/b", "")


def staged_and_edited_again(world: GitRepositories) -> None:
    write(world, "README.md", "staged\n")
    world.agent("add", "README.md")
    write(world, "README.md", "and edited\n")


def staged_and_put_back(world: GitRepositories) -> None:
    write(world, "README.md", "staged\n")
    world.agent("add", "README.md")
    write(world, "README.md", BASE["README.md"])


def untracked(world: GitRepositories) -> None:
    write(world, "new")
    write(world, "deep/er/and/deeper/new")
    write(world, "empty", "")


def staged_then_deleted(world: GitRepositories) -> None:
    write(world, "gone")
    write(world, "README.md", "staged\n")
    world.agent("add", "-A")
    (world.path / "gone").unlink()
    (world.path / "README.md").unlink()


def deleted(world: GitRepositories) -> None:
    (world.path / "README.md").unlink()
    world.agent("rm", "-q", "-r", "dir")


def removed_from_the_index_only(world: GitRepositories) -> None:
    world.agent("rm", "-q", "--cached", "README.md")


def removed_from_the_index_and_ignored(world: GitRepositories) -> None:
    world.agent("rm", "-q", "--cached", "README.md")
    write(world, ".gitignore", "README.md\n")
    write(world, "README.md", "edited all the same\n")


def everything_deleted(world: GitRepositories) -> None:
    world.agent("rm", "-q", "-r", ".")


def renamed(world: GitRepositories) -> None:
    world.agent("mv", "dir", "moved")
    write(world, "moved/a", "and edited\n")


def modes(world: GitRepositories) -> None:
    (world.path / "run.sh").chmod(0o755)
    (world.path / "README.md").chmod(0o755)
    world.agent("add", "README.md")
    write(world, "new.sh", "#!\n")
    (world.path / "new.sh").chmod(0o700)


def links(world: GitRepositories) -> None:
    (world.path / "dangling").symlink_to("nowhere")
    (world.path / "outside").symlink_to("/etc/hostname")
    (world.path / "to-a-directory").symlink_to("/etc")
    (world.path / "README.md").unlink()
    (world.path / "README.md").symlink_to("dir/a")


def link_in_place_of_a_directory(world: GitRepositories) -> None:
    for name in ("a", "b"):
        (world.path / "dir" / name).unlink()
    (world.path / "dir").rmdir()
    (world.path / "dir").symlink_to("other")


def link_to_outside_in_place_of_a_directory(world: GitRepositories) -> None:
    outside = world.root / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "a").write_text("not the worktree's\n")
    link_in_place_of_a_directory(world)
    (world.path / "dir").unlink()
    (world.path / "dir").symlink_to(outside)


def directory_in_place_of_a_file(world: GitRepositories) -> None:
    (world.path / "README.md").unlink()
    write(world, "README.md/inside")


def file_in_place_of_a_directory(world: GitRepositories) -> None:
    world.agent("rm", "-q", "-r", "dir")
    write(world, "dir")
    world.agent("add", "dir")


def skip_worktree(world: GitRepositories) -> None:
    world.agent("update-index", "--skip-worktree", "README.md", "dir/a")
    write(world, "README.md", "hidden\n")
    write(world, "new")


def assume_unchanged(world: GitRepositories) -> None:
    world.agent("update-index", "--assume-unchanged", "README.md", "dir/a")
    write(world, "README.md", "hidden\n")
    (world.path / "dir" / "a").unlink()


def intended_to_be_added(world: GitRepositories) -> None:
    write(world, "new")
    write(world, "staged")
    world.agent("add", "staged")
    world.agent("add", "-N", "new")


def ignored_but_tracked(world: GitRepositories) -> None:
    write(world, "ignored-and-added")
    world.agent("add", "-f", "ignored-and-added")
    write(world, "ignored-and-added", "and edited\n")


def odd_names(world: GitRepositories) -> None:
    for name in (
        *("with space", "line\nbreak", "tab\t", "→/ü", "-dash", ":(top)x", '"quoted"', "back\\slash", "*"),
        *("case", "CASE"),
    ):
        write(world, name)
    Path(os.fsdecode(bytes(world.path) + b"/not-utf8-\xff\xfe")).write_text("1")
    Path(os.fsdecode(bytes(world.path) + b"/staged-\xff")).write_text("1")
    world.agent("add", "with space", os.fsdecode(b"staged-\xff"))


def line_ends(world: GitRepositories) -> None:
    write(world, "win.bat", b"mixed\r\nlines\nhere\r\n")
    write(world, "new.bat", b"only\nlf\n")
    write(world, "staged.bat", b"staged\n")
    write(world, "t.txt", b"one\r\ntwo\r\n")
    write(world, "crlf.txt", b"one\r\ntwo\n\r\n")
    world.agent("add", "staged.bat")


def lines_that_git_sees_no_difference_in(world: GitRepositories) -> None:
    write(world, "dos.bat", b"echo\n")
    write(world, "README.md", "changed\n")


def keywords_and_encodings(world: GitRepositories) -> None:
    write(world, "x.id", "$Id: something else $\nmore\n")
    write(world, "new.id", "$Id: kept $\n")
    write(world, "t.u16", "ü\n".encode("utf-16-le"))
    write(world, "broken.u16", b"\xff")
    write(world, "big.lfs", b"\0\r\n" * 1000)


def new_attributes(world: GitRepositories) -> None:
    write(world, ".gitattributes", "[attr]text -text\n* text eol=crlf ident filter=x working-tree-encoding=UTF-16\n")
    write(world, "README.md", b"\r\n\n$Id: x $\r")


def merge_in_progress(world: GitRepositories) -> None:
    _two_sides(world)
    assert "CONFLICT" in _fails(world, "merge", "idea")
    write(world, "new")


def merge_half_resolved(world: GitRepositories) -> None:
    merge_in_progress(world)
    write(world, "README.md", "resolved\n")
    world.agent("add", "README.md")


def merge_of_a_branch_deleted_since(world: GitRepositories) -> None:
    merge_in_progress(world)
    world.agent("branch", "-q", "-D", "idea")


def merge_without_commit(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"idea": "1\n"})
    world.agent("switch", "-q", BRANCH)
    world.agent_commits({"mine": "1\n"})
    world.agent("merge", "-q", "--no-commit", "--no-ff", "idea")


def rebase_in_progress(world: GitRepositories) -> None:
    _two_sides(world)
    assert "CONFLICT" in _fails(world, "rebase", "idea")
    write(world, "new")


def rebase_with_a_part_done(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"README.md": "one\n"})
    world.agent("switch", "-q", BRANCH)
    world.agent_commits({"first": "1\n"})
    world.agent_commits({"README.md": "two\n"})
    write(world, "dir/a", "set aside\n")
    assert "CONFLICT" in _fails(world, "rebase", "--autostash", "idea")


def cherry_pick_in_progress(world: GitRepositories) -> None:
    _two_sides(world)
    assert "CONFLICT" in _fails(world, "cherry-pick", "idea")


def revert_in_progress(world: GitRepositories) -> None:
    world.agent_commits({"README.md": "one\n"})
    world.agent_commits({"README.md": "two\n"})
    assert "CONFLICT" in _fails(world, "revert", "HEAD~1")


def bisect_in_progress(world: GitRepositories) -> None:
    for number in range(4):
        world.agent_commits({"n": f"{number}\n"})
    world.agent("bisect", "start", "HEAD", "HEAD~3")


def detached_with_commits(world: GitRepositories) -> None:
    world.agent_commits({"on-branch": "1\n"})
    world.agent("checkout", "-q", "--detach")
    world.agent_commits({"detached": "1\n"})
    write(world, "new")


def another_branch(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"idea": "1\n"})
    write(world, "README.md", "staged there\n")
    world.agent("add", "README.md")


def unrelated_branch(world: GitRepositories) -> None:
    world.agent_commits({"on-branch": "1\n"})
    world.agent("switch", "-q", "--orphan", "elsewhere")
    world.agent_commits({"stray": "1\n"})
    write(world, "new")


def unborn_branch(world: GitRepositories) -> None:
    world.agent_commits({"on-branch": "1\n"})
    world.agent("switch", "-q", "--orphan", "elsewhere")
    write(world, "stray")
    world.agent("add", "stray")


def unpushed_commits(world: GitRepositories) -> None:
    world.agent_commits({"one": "1\n"})
    world.agent_commits({"README.md": "two\n"})


def unpushed_commits_and_files(world: GitRepositories) -> None:
    unpushed_commits(world)
    write(world, "one", "edited\n")


def stashes(world: GitRepositories) -> None:
    write(world, "README.md", "first\n")
    world.agent("stash", "-q")
    write(world, "README.md", "second\n")
    write(world, "new")
    world.agent("stash", "push", "-q", "-u", "-m", "with → a name")


def left_over_lock(world: GitRepositories) -> None:
    write(world, "README.md", "staged\n")
    world.agent("add", "README.md")
    (world.state / "index.lock").touch()


def corrupt_index(world: GitRepositories) -> None:
    unstaged(world)
    (world.state / "index").write_bytes(b"DIRC" + bytes(60))


def truncated_index(world: GitRepositories) -> None:
    unstaged(world)
    (world.state / "index").write_bytes(b"")


def missing_index(world: GitRepositories) -> None:
    untracked(world)
    (world.state / "index").unlink()


def split_index(world: GitRepositories) -> None:
    world.agent("update-index", "--split-index")
    staged(world)
    write(world, "README.md", "edited\n")


def sockets_and_pipes(world: GitRepositories) -> None:
    os.mkfifo(world.path / "pipe")
    (world.path / "README.md").unlink()
    os.mkfifo(world.path / "README.md")
    with socket.socket(socket.AF_UNIX) as listening:
        thread_ref = Path.cwd()
        os.chdir(world.path)  # a socket's path has 108 bytes
        try:
            listening.bind("socket")
        finally:
            os.chdir(thread_ref)
    write(world, "new")


def many_files(world: GitRepositories) -> None:
    """Create files whose names are together longer than the 2 MB that an argv may be."""
    folder = "/".join(["long-name-" * 22] * 4)
    for number in range(2600):
        write(world, f"{folder}/{number}", "")


def _two_sides(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"README.md": "one\n", "idea": "1\n"})
    world.agent("switch", "-q", BRANCH)
    world.agent_commits({"README.md": "two\n"})


def _fails(world: GitRepositories, *args: str) -> str:
    return world.agent("-c", "core.editor=true", "-c", 'alias.try=!f() { git "$@" 2>&1 || true; }; f', "try", *args)


STATES = (
    *map(State, (staged, unstaged, staged_and_edited_again, staged_and_put_back, untracked, staged_then_deleted)),
    *map(State, (deleted, removed_from_the_index_only, removed_from_the_index_and_ignored, everything_deleted)),
    *map(State, (renamed, modes, links, link_in_place_of_a_directory, link_to_outside_in_place_of_a_directory)),
    *map(State, (directory_in_place_of_a_file, file_in_place_of_a_directory, skip_worktree, assume_unchanged)),
    *map(State, (ignored_but_tracked, odd_names, line_ends, lines_that_git_sees_no_difference_in)),
    *map(State, (keywords_and_encodings, new_attributes, unpushed_commits, unpushed_commits_and_files, stashes)),
    *map(State, (merge_without_commit, left_over_lock, sockets_and_pipes, many_files, split_index)),
    # An intent-to-add file is new; a conflicted file is as in HEAD; a broken index is as in HEAD.
    State(intended_to_be_added, index=False),
    *(State(one, index=False) for one in (merge_in_progress, merge_half_resolved, merge_of_a_branch_deleted_since)),
    *(State(one, index=False) for one in (rebase_in_progress, rebase_with_a_part_done, cherry_pick_in_progress)),
    *(
        State(one, index=False)
        for one in (revert_in_progress, bisect_in_progress, corrupt_index, truncated_index, missing_index)
    ),
    # HEAD is elsewhere: commits that continue the branch are added to it.
    *(State(one, index=False, tip=False) for one in (detached_with_commits, another_branch)),
    *(State(one, index=False) for one in (unrelated_branch, unborn_branch)),
)
