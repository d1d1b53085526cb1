"""Which skills are taken from a listing of git's, and which of a worktree's are switched off for codex."""

import json
from pathlib import Path

import pytest

from bot.agents.presets import PRESETS, skills_of_repository, without_skills
from bot.turn.skills import MOST_FILES, MOST_SKILLS, SKILL_BYTES, TOTAL_BYTES, choose

FILE, EXECUTABLE, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
BLOB = "1" * 40
MOST = TOTAL_BYTES // (4 << 20)


def entry(path: str, mode: str = FILE, size: int = 10) -> str:
    kind = "commit" if mode == SUBMODULE else "blob"
    return f"{mode} {kind} {BLOB} {'-' if mode == SUBMODULE else size}\t{path}"


def skill(name: str, *, folder: str = ".agents", size: int = 10) -> str:
    return entry(f"{folder}/skills/{name}/SKILL.md", size=size)


@pytest.mark.parametrize(
    ("listed", "names", "left_out"),
    [
        ([skill("a"), entry(".agents/skills/a/run.sh", EXECUTABLE)], ["a"], None),
        ([skill("b", folder=".claude"), skill("a")], ["a", "b"], None),
        ([entry(".agents/skills/README.md"), skill("a")], ["a"], None),
        ([entry(".claude/skills", LINK), skill("a")], ["a"], None),
        ([skill("a"), entry(".claude/skills/a", LINK)], ["a"], None),
        ([entry(".agents/skills/a", LINK)], [], "a (no ordinary file SKILL.md)"),
        ([entry(".agents/skills/a", SUBMODULE)], [], "a (no ordinary file SKILL.md)"),
        ([entry(".agents/skills/a/SKILL.md", LINK)], [], "a (no ordinary file SKILL.md)"),
        ([entry(".agents/skills/a/notes.md")], [], "a (no ordinary file SKILL.md)"),
        ([skill("a"), entry(".agents/skills/a/key", LINK)], ["a"], "a (links, submodules and odd file names in them)"),
        ([skill("a"), entry(".agents/skills/a/../b")], ["a"], "a (links, submodules and odd file names in them)"),
        ([skill("a"), entry(".agents/skills/a/x\ny")], ["a"], "a (links, submodules and odd file names in them)"),
        ([skill("..")], [], ".. (a name of other than"),
        ([skill("-rf")], [], "-rf (a name of other than"),
        ([skill("a\nb")], [], "one with an odd name (a name of other than"),
        ([skill("x" * 65)], [], "one with an odd name (a name of other than"),
        ([skill("a", size=100 << 20), skill("b")], ["b"], f"a (over {SKILL_BYTES >> 20} MB)"),
        ([skill(f"s{at}", size=4 << 20) for at in range(9)], [f"s{at}" for at in range(MOST)], "s5, s6, s7, s8 (all"),
        (
            [skill("a"), *(entry(f".agents/skills/a/{at}") for at in range(MOST_FILES)), skill("b")],
            ["b"],
            "a (all together over",
        ),
        ([skill(f"s{at:03}") for at in range(500)], [f"s{at:03}" for at in range(MOST_SKILLS)], "390 more (more than"),
    ],
)
def test_odd_and_large_skills_are_left_out_and_named(listed: list[str], names: list[str], left_out: str | None) -> None:
    found = choose(listed)
    assert list(found.names) == names
    assert {path.partition("/")[0] for path in found.files} == set(names)
    assert not [path for path in found.files if ".." in path or not path.isprintable()]
    assert [clause for clause in found.left_out if left_out is None or left_out not in clause] == []
    assert bool(found.left_out) is (left_out is not None)


def test_of_two_skills_with_one_name_the_one_for_all_agents_counts() -> None:
    found = choose([skill("a", folder=".claude", size=7), skill("a", size=8)])
    assert found.files["a/SKILL.md"].size == 8


def test_each_skill_that_codex_would_find_in_a_worktree_is_switched_off(tmp_path: Path) -> None:
    codex, worktree = PRESETS["codex"], tmp_path / "worktree"
    real = worktree / "tools" / "evil"
    real.mkdir(parents=True)
    (real / "SKILL.md").touch()
    own = worktree / ".codex" / "skills" / "a" / "b"
    own.mkdir(parents=True)
    (own / "SKILL.md").touch()
    linked = worktree / ".agents" / "skills"
    linked.mkdir(parents=True)
    (linked / "evil").symlink_to("../../tools/evil")
    (linked / "round").symlink_to(".")
    found = skills_of_repository(codex, worktree)
    assert found is not None
    assert {str(real / "SKILL.md"), str(own / "SKILL.md"), str(linked / "evil" / "SKILL.md")} <= set(found)
    config = json.loads(without_skills({"CODEX_CONFIG": '{"model": "m"}'}, found)["CODEX_CONFIG"])
    assert config["model"] == "m"
    assert [(one["path"], one["enabled"]) for one in config["skills"]["config"]] == [(path, False) for path in found]
    assert skills_of_repository(PRESETS["gemini"], worktree) == ()
    (linked / "out").symlink_to(tmp_path)
    assert skills_of_repository(codex, worktree) is None
