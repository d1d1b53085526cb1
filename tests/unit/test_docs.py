"""README and docs/: every link leads somewhere, the map has every page, and pictures are small."""

import re
from pathlib import Path

import pytest

from bot.markdown import to_html

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LARGEST_PICTURE = 700_000


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in re.findall(r' (?:href|src)="([^"]*)"', to_html(page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_the_map_has_every_page() -> None:
    listed = set(re.findall(r"\]\((?!\.\.)([^)#]+)\)", (DOCS / "README.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.glob("*.md")} - {"README.md"}
    pages |= {str(page.relative_to(DOCS)) for page in DOCS.glob("*/README.md")}
    assert listed == pages


def test_pictures_are_small_and_shown() -> None:
    pictures = [file for file in (DOCS / "img").iterdir() if file.suffix in {".png", ".webp", ".gif"}]
    text = "".join(page.read_text() for page in PAGES)
    assert [file.name for file in pictures if file.stat().st_size > LARGEST_PICTURE or file.name not in text] == []
