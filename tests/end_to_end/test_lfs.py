"""Files under Git LFS: the agent reads and changes their content, the host fetches and pushes their objects."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.simulated.github.faults import FailBefore
from bot.tree.lfs import objects
from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import lfs_pointer, require_git_lfs
from tests.support.world import Talk, World

ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
CONTENT = b"the picture, in all its colours\n"
pytestmark = pytest.mark.usefixtures("git_lfs")


@pytest.fixture(scope="module")
def git_lfs() -> None:
    require_git_lfs()


@pytest.fixture
async def shop(a_world: Worlds, sandbox_settings: dict[str, str]) -> AsyncIterator[World]:
    """Yield a world whose repository has a picture under Git LFS."""
    async with a_world(sandbox_settings) as world:
        await has_picture(world)
        yield world


@pytest.fixture
async def open_shop(a_world: Worlds) -> AsyncIterator[World]:
    async with a_world() as world:
        await has_picture(world)
        yield world


def oid(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def has_picture(world: World, content: bytes = CONTENT) -> None:
    world.repository.lfs[oid(content)] = content
    await world.maria.pushes("main", {".gitattributes": ATTRIBUTES, "a.bin": lfs_pointer(content)})


async def asked(world: World, request: str) -> Talk:
    talk = await world.maria.opens_issue("Pictures")
    await talk.says(f"@threadtree-bot {request}")
    return talk


async def branch_of(world: World, talk: Talk) -> dict[str, str]:
    return await world.files(f"threadtree/issue-{talk.number}")


async def test_the_agent_reads_and_changes_the_content_and_the_host_pushes_the_object(shop: World) -> None:
    talk = await asked(shop, "look a.bin\nappend a.bin: and more\nwrite c.txt: text\necho prompt")

    said = await talk.hears("a.bin has 32 bytes.", "*.bin filter=lfs", "are under Git LFS", "2 files +")

    assert "Not committed" not in said
    changed = CONTENT + b"and more\n"
    assert await branch_of(shop, talk) | {"c.txt": "text"} == await branch_of(shop, talk)
    assert (await branch_of(shop, talk))["a.bin"] == lfs_pointer(changed).strip()
    assert shop.repository.lfs[oid(changed)] == changed

    await talk.says("@threadtree-bot look a.bin\nsay As it was.")
    said = await talk.hears("a.bin has 41 bytes.", "As it was.")
    assert "file" not in said.replace("a.bin", "")


async def test_an_object_that_github_does_not_have_is_named_and_its_file_stays_a_lfs_pointer(open_shop: World) -> None:
    open_shop.repository.lfs.clear()
    talk = await asked(open_shop, "look a.bin\necho prompt")
    await talk.hears(
        f"a.bin has {len(lfs_pointer(CONTENT))} bytes.",
        "you see only the pointers",
        "Git LFS pointers of `a.bin`",
        "404",
    )


async def test_what_is_beyond_the_limit_stays_a_lfs_pointer(open_shop: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MOST_BYTES", 40)
    await open_shop.maria.pushes("main", {"giant.bin": lfs_pointer(CONTENT).replace("size 32", "size 999999999999999")})
    talk = await asked(open_shop, "look a.bin\nlook giant.bin")
    await talk.hears(
        "a.bin has 32 bytes.", "giant.bin has 140 bytes.", "Git LFS pointers of `giant.bin`: there is more"
    )


async def test_an_agent_is_the_first_to_put_files_under_git_lfs(
    a_world: Worlds, sandboxed_settings: dict[str, str]
) -> None:
    async with a_world(sandboxed_settings) as world:
        request = f"write .gitattributes: {ATTRIBUTES.strip()}\nwrite a.bin: picture\ncommit First\nwrite b.bin: other"
        talk = await asked(world, request)
        await talk.hears("3 files +")
        assert (await branch_of(world, talk))["a.bin"] == lfs_pointer(b"picture\n").strip()
        assert {b"picture\n", b"other\n"} <= set(world.repository.lfs.values())


async def test_a_rescue_has_the_objects_of_all_commits_that_were_not_pushed(shop: World) -> None:
    talk = await asked(shop, "say Looked.")
    await talk.hears("Looked.")
    shop.faults.add(FailBefore(403, "This repository is over its data quota."), path="*/objects/batch", times=1)
    await talk.says("@threadtree-bot append a.bin: one\ncommit One\nappend a.bin: two\ncommit Two\nappend a.bin: three")
    await talk.hears("could not be pushed")
    await talk.closes()
    await shop.until("(select state = 'removed' from worktrees)")
    await talk.reopens()

    await talk.says("@threadtree-bot say Again.")
    await talk.hears("Again.")

    versions = [CONTENT + b"one\n", CONTENT + b"one\ntwo\n", CONTENT + b"one\ntwo\nthree\n"]
    assert {one: shop.repository.lfs.get(oid(one)) for one in versions} == {one: one for one in versions}
    assert (await branch_of(shop, talk))["a.bin"] == lfs_pointer(versions[2]).strip()


ELSEWHERE = "http://127.0.0.1:1/evil"
LFSCONFIG = f"""[lfs]
\turl = {ELSEWHERE}
\tpushurl = {ELSEWHERE}
\tfetchinclude = nothing
\tfetchexclude = *
\tskipdownloaderrors = true
\tlocksverify = true
\tallowincompletepush = true
[remote "origin"]
\tlfsurl = {ELSEWHERE}
\tlfspushurl = {ELSEWHERE}
"""


async def test_no_setting_of_the_repository_leads_elsewhere(shop: World) -> None:
    # The bare clone's own HEAD names this branch: git-lfs reads the `.lfsconfig` there.
    files = {".lfsconfig": LFSCONFIG, "gone.bin": lfs_pointer(b"gone")}
    await shop.maria.pushes("master", files, base="main")
    talk = await shop.maria.opens_pull("Pictures", head="master")
    await talk.says("@threadtree-bot look a.bin\nappend a.bin: more")
    await talk.hears("a.bin has 32 bytes.", "1 file +", "Git LFS pointers of `gone.bin`", "404")
    assert oid(CONTENT + b"more\n") in shop.repository.lfs


async def test_a_pointer_without_its_object_withholds_the_push(shop: World) -> None:
    talk = await asked(shop, "say Looked.")
    await talk.hears("Looked.")
    [path] = await shop.worktrees("path")
    (Path(path) / "b.bin").write_text(lfs_pointer(b"nowhere"))
    (Path(path) / "c.bin").write_text(lfs_pointer(b"x").replace(oid(b"x"), "../" * 21 + "a"))
    await talk.says("@threadtree-bot commit Lie")
    await talk.hears("Not pushed", "Git LFS pointers to objects", "`b.bin`")
    assert list(await shop.branches()) == ["main"]
