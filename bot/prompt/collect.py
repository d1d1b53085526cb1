"""What is fetched of a thread for the prompt: every part bounded in time, and none of them able to fail the turn."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from bot.github import thread_parts
from bot.github.checks import read_failed_checks
from bot.github.client import GitHub
from bot.github.errors import GitHubError
from bot.github.thread import Gaps, Text, WholeThread
from bot.github.thread_parts import NOBODY, Moment, Overview
from bot.model import Actor, Repository

PART_SECONDS = 20.0
"""How long one part may take with all its pages; the parts are fetched side by side."""
SECONDS_IN_ALL = 30.0
MOST_AUTHORS = 40
"""Permissions that are asked for one prompt. Further authors count as outsiders."""

CHECKS = "the checks"
"""The name of a part."""

T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Collected:
    """A thread, and the ids of those of its authors who may write to the repository."""

    thread: WholeThread
    writers: frozenset[int]


async def collect(
    github: GitHub, repository: Repository, number: int, moment: Moment, failed: tuple[str, Set[str]] | None = None
) -> Collected | None:
    """Fetch the thread. None where nothing of it can be had; a part that cannot be had is named.

    What stood there at the moment of the request is told apart by the dates of the texts (see `selection`). `failed`:
    the request is about these checks of that commit.
    """
    gaps = Gaps()
    until = asyncio.get_running_loop().time() + SECONDS_IN_ALL
    where, bot = (github, repository, number), moment.bot_id
    overview = await _part("the thread", partial(thread_parts.read_overview, *where, moment, gaps), gaps.missing, until)
    if overview is None and failed is None:
        return None
    # The checks that a request is about are told all the same.
    overview = overview or Overview(WholeThread("(not known)", True, Text(NOBODY, "", moment.asked_at)))
    thread = overview.thread

    async def part(name: str, read: Callable[..., Awaitable[T]], *about: object) -> T | None:
        return await _part(name, partial(read, *where, *about, gaps), gaps.missing, until)

    earlier = part("earlier comments", thread_parts.read_comments, overview.comments_before)
    pull = thread.pull
    sha, names = failed or (pull.head_sha if pull is not None else None, None)
    checking = _part(CHECKS, partial(read_failed_checks, github, repository, sha, gaps, names), gaps.missing, until)
    if pull is None:
        said, checks = await asyncio.gather(earlier, checking)
        thread = replace(thread, comments=(*(said or ()), *thread.comments))
    else:
        said, reviews, threads, files, commits, checks = await asyncio.gather(
            earlier,
            part("the reviews", thread_parts.read_reviews),
            part("the review threads", thread_parts.read_review_threads, bot),
            part("the changed files", thread_parts.read_files, pull),
            part("earlier commits", thread_parts.read_commits, overview.commits_before),
            checking,
        )
        texts = sorted((*(said or ()), *thread.comments, *(reviews or ())), key=lambda text: text.created_at)
        pull = thread_parts.as_of(pull, commits or (), moment)
        pull = replace(pull, files=files or (), review_threads=threads or ())
        thread = replace(thread, comments=tuple(texts), pull=pull)
    thread = replace(thread, failed_checks=checks or ())
    writers = await _writers(github, repository, _authors(thread, moment), gaps, until)
    if moment.writer_id is not None:
        writers |= {moment.writer_id}
    return Collected(replace(thread, missing=tuple(gaps.missing), cut=tuple(gaps.cut)), writers)


async def _part(name: str, read: Callable[[], Awaitable[T]], missing: list[str], until: float) -> T | None:
    """Return what is read, or None with its name in `missing`. `until` is a time of the event loop's clock."""
    try:
        async with asyncio.timeout_at(until), asyncio.timeout(PART_SECONDS):
            return await read()
    except (GitHubError, TimeoutError) as problem:
        _log.warning("thread-part-missing", part=name, problem=f"{type(problem).__name__}: {problem}")
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        _log.warning("thread-part-unreadable", part=name, problem=f"{type(problem).__name__}: {problem}")
    missing.append(name)
    return None


def _authors(thread: WholeThread, moment: Moment) -> list[Actor]:
    """Return whose permission is to be asked, of those whose texts are at hand: the opener first, then the newest."""
    texts = [thread.description, *reversed(thread.comments)]
    for remarks in thread.pull.review_threads if thread.pull else ():
        texts += remarks.comments
    texts += [linked.description for linked in thread.linked]
    known = {0, moment.bot_id, moment.writer_id}
    asked = (text.author for text in texts if not text.is_hidden and text.author.id not in known)
    return list({author.id: author for author in asked}.values())


async def _writers(
    github: GitHub, repository: Repository, authors: Sequence[Actor], gaps: Gaps, until: float
) -> frozenset[int]:
    """Return the ids of those who may write. Who cannot be asked about may not: it fails closed."""
    limit = asyncio.Semaphore(4)

    async def may_write(author: Actor) -> bool | None:
        async with limit:
            found, _ = await github.permission(repository, author)
            return found in {"write", "maintain", "admin"}

    asked = authors[:MOST_AUTHORS]
    unknown: list[str] = []
    answers = await asyncio.gather(
        *(_part(author.login, partial(may_write, author), unknown, until) for author in asked)
    )
    if unknown:
        gaps.missing.append(f"the permission of {len(unknown)} of the authors")
    gaps.some(len(authors) - MOST_AUTHORS, len(authors), "permissions of authors")
    return frozenset(author.id for author, may in zip(asked, answers, strict=True) if may)
