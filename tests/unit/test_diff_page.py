"""Git's diff as lines side by side, by what git itself says of files that are made up."""

import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bot.operator.dashboard.diff import File, Side, files_of

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["", "a", "total = sum(prices)", "total = sum(map(Decimal, prices))", "--- a/x", "+++ b/x", "@@ -1 +1 @@"]
        ),
        st.text(st.characters(blacklist_characters="\n", blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=30),
        st.sampled_from(["diff --git a/x b/x", "-", "+", "\\ No newline at end of file", "index 1..2"]),
    ),
    max_size=30,
)


def shown(folder: Path, before: list[str], after: list[str]) -> list[File]:
    """Return what is shown of git's diff of two files."""
    for name, lines in (("before", before), ("after", after)):
        (folder / name).write_text("\n".join(lines), newline="")
    argv = ("git", "diff", "--no-index", "--no-color", "before", "after")
    done = subprocess.run(argv, cwd=folder, capture_output=True, check=False)
    return files_of(done.stdout.decode())


def text_of(side: Side | None) -> str | None:
    return None if side is None else "".join(words for words, _ in side.pieces)


@given(LINES, LINES)
def test_each_line_stands_at_its_number_on_its_side(tmp_path_factory, before: list[str], after: list[str]) -> None:  # type: ignore[no-untyped-def]
    files = shown(tmp_path_factory.getbasetemp(), before, after)
    assert len(files) == ("\n".join(before) != "\n".join(after))
    for file in files:
        for row in file.rows:
            if isinstance(row, str):
                continue
            for side, lines in zip(row, (before, after), strict=True):
                assert side is None or text_of(side) == lines[side.number - 1]
        told = [row for row in file.rows if not isinstance(row, str)]
        assert file.removed == sum(left is not None and left.differs for left, _ in told)
        assert file.added == sum(right is not None and right.differs for _, right in told)


def test_words_that_differ_are_marked_and_lines_without_a_likeness_are_not() -> None:
    [file] = files_of(
        "diff --git a/shop/cart.py b/shop/cart.py\nindex 1..2 100644\n--- a/shop/cart.py\n+++ b/shop/cart.py\n"
        "@@ -4,2 +4,3 @@ def total(prices):\n-    return round(sum(prices), 2)\n+    return sum(prices, Decimal())\n"
        "-x = 1\n+y: int\n+more\n"
    )
    assert (file.name, file.added, file.removed, file.facts) == ("shop/cart.py", 3, 2, [])
    heading, first, second, third = file.rows
    assert heading == "Line 4 def total(prices):"
    assert isinstance(first, tuple)
    assert first[0] is not None
    assert [words for words, differs in first[0].pieces if differs] == ["round(", ")", "2"]
    assert second == (Side(5, (("x = 1", False),), True), Side(5, (("y: int", False),), True))
    assert third == (None, Side(6, (("more", False),), True))


def test_a_rename_and_a_diff_that_ends_anywhere_are_shown() -> None:
    text = (
        "diff --git a/old name b/new name\nsimilarity index 90%\nrename from old name\nrename to new name\n"
        '--- a/old name\n+++ b/new name\n@@ -1 +1 @@\n-a\n+b\ndiff --git "a/\\303\\244" "b/\\303\\244"\n'
        'deleted file mode 100644\n--- "a/\\303\\244"\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n'
    )
    first, second = files_of(text)
    assert (first.name, first.facts) == ("new name", ["rename from old name", "rename to new name"])
    assert (second.name, second.facts, second.removed) == ("\\303\\244", ["deleted file mode 100644"], 2)
    for end in range(len(text)):
        assert len(files_of(text[:end])) <= 2
