"""Submodules: the host fills those that the bot may read, and names the others."""

from pathlib import Path

from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git
from tests.support.submodules import add_submodules


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
        lib = await add_submodules(world.clock(), made["lib"], "main", inner=f"../inner.git {tips['inner']}")
        public = {"lib": f"../lib.git {lib}", "hidden": f"../hidden.git {tips['hidden']}"}
        await add_submodules(world.clock(), world.repository, "main", **public)

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
        await add_submodules(
            world.clock(), world.repository, "topic", **public, secret=f"../secret.git {tips['secret']}"
        )
        pull = await world.maria.opens_pull(head="topic", title="More", body="")
        await pull.says("@threadtree-bot look lib/lib.txt\nlook secret/secret.txt")
        await pull.hears("lib.txt has 9 bytes.", "`secret` (not everybody can read its repository")
        assert not list(world.data_dir.glob("repos/**/secret.git/refs/heads/*"))
