"""Submodules: the host fills those that the bot may read, and names the others."""

from pathlib import Path

from bot.simulated.github.git import NewCommit
from bot.simulated.github.model import Repository
from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git
from tests.support.world import World


async def adds(world: World, to: Repository, branch: str, **inside: str) -> str:
    """Commit submodules on a branch: `path="URL COMMIT"`."""
    told = {path: one.split(" ") for path, one in inside.items()}
    text = "".join(f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n' for path, (url, _) in told.items())
    before = (await to.git.branches()).get(branch) or (await to.git.branches())["main"]
    files = await to.git.run("ls-tree", before)
    blob = await to.git.run("hash-object", "-w", "--stdin", stdin=text.encode())
    lines = [line for line in files.splitlines() if not line.endswith(".gitmodules")]
    lines += [f"100644 blob {blob}\t.gitmodules", *(f"160000 commit {sha}\t{path}" for path, (_, sha) in told.items())]
    tree = await to.git.run("mktree", "--missing", stdin="\n".join(lines).encode() + b"\n")
    return await to.git.commit(NewCommit(branch, "Add submodules", "maria", world.clock(), (before,), tree))


async def test_private_submodules_that_the_default_branch_names_are_filled_and_others_told(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        made = {
            name: await world.github.create_repository(
                f"acme/{name}", {f"{name}.txt": f"{name} file\n"}, bot_permission="none" if name == "hidden" else "read"
            )
            for name in ("inner", "lib", "secret", "hidden")
        }
        tips = {name: (await one.git.branches())["main"] for name, one in made.items()}
        lib = await adds(world, made["lib"], "main", inner=f"../inner.git {tips['inner']}")
        public = {"lib": f"../lib.git {lib}", "hidden": f"../hidden.git {tips['hidden']}"}
        await adds(world, world.repository, "main", **public)

        talk = await world.maria.opens_issue("Submodules")
        await talk.says("@threadtree-bot look lib/lib.txt\nlook lib/inner/inner.txt\nwrite a.txt: text\necho prompt")
        said = await talk.hears(
            "lib.txt has 9 bytes.", "inner.txt has 11 bytes.",
            "hidden: the bot cannot read its repository",
            "worked without the files of these submodules: `hidden` (the bot cannot read its repository)",
        )  # fmt: skip
        assert "Not committed" not in said
        (path,) = world.data_dir.glob("worktrees/acme/shop/*/")
        assert git(Path(path), "status", "--porcelain") == ""

        # A pull request may not name what only the bot can read.
        await adds(world, world.repository, "topic", **public, secret=f"../secret.git {tips['secret']}")
        pull = await world.maria.opens_pull(head="topic", title="More", body="")
        await pull.says("@threadtree-bot look lib/lib.txt\nlook secret/secret.txt")
        await pull.hears("lib.txt has 9 bytes.", "`secret` (not everybody can read its repository")
        assert not list(world.data_dir.glob("repos/**/secret.git/refs/heads/*"))
