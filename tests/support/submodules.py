"""Repositories with submodules."""

from datetime import datetime

from bot.simulated.github.git import NewCommit
from bot.simulated.github.model import Repository


async def add_submodules(at: datetime, to: Repository, branch: str, **inside: str) -> str:
    """Commit submodules on a branch: `path="URL COMMIT"`."""
    told = {path: one.split(" ") for path, one in inside.items()}
    text = "".join(f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n' for path, (url, _) in told.items())
    before = (await to.git.branches()).get(branch) or (await to.git.branches())["main"]
    files = await to.git.run("ls-tree", before)
    blob = await to.git.run("hash-object", "-w", "--stdin", stdin=text.encode())
    lines = [line for line in files.splitlines() if not line.endswith(".gitmodules")]
    lines += [f"100644 blob {blob}\t.gitmodules", *(f"160000 commit {sha}\t{path}" for path, (_, sha) in told.items())]
    tree = await to.git.run("mktree", "--missing", stdin="\n".join(lines).encode() + b"\n")
    return await to.git.commit(NewCommit(branch, "Add submodules", "maria", at, (before,), tree))
