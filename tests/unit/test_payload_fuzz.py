"""Whatever a payload says: what may be written of its repository is the row's, or GitHub's answer for its id."""

import asyncio
import copy
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from bot.github.client import GitHub
from bot.github.errors import NotFound
from bot.github.events import Unreadable
from bot.github.payloads import read
from bot.inbox.actions import action_of, failure_of, is_remark
from bot.inbox.delivery import delivery_of
from bot.inbox.repository import in_its_repository
from bot.json_values import parse
from bot.model import Repository
from bot.store.database import Pool
from bot.thread.authority import Policy
from bot.turn.parsing import CommentParser
from bot.verbs import VERBS
from tests.support.fuzz import FUZZ

PAYLOADS = 1_000 * FUZZ
AT = "2026-01-01T00:00:00Z"
MARIA = {"login": "maria", "id": 7, "type": "User"}
TEXT = {"node_id": "t", "body": "@bot x", "user": MARIA, "created_at": AT, "updated_at": AT}
THREAD = {**TEXT, "number": 1, "title": "t", "state": "open", "closed_at": None}
PAYLOAD: dict[str, Any] = {
    "action": "created",
    "repository": {"id": 5, "name": "shop", "owner": {"login": "acme"}, "default_branch": "main"},
    "installation": {"id": 3},
    "sender": MARIA,
    "issue": THREAD,
    "pull_request": {**THREAD, "merged_at": None, "head": {"ref": "x", "sha": "a" * 40, "repo": {"id": 5}}},
    "comment": {**TEXT, "id": 9, "path": "a", "diff_hunk": "@@", "line": 3, "pull_request_review_id": 4},
    "review": {**TEXT, "id": 4, "submitted_at": AT, "state": "commented"},
    "label": {"name": "threadtree"},
    "assignee": {"login": "bot", "id": 1},
    "requested_reviewer": {"login": "bot", "id": 1},
    "changes": {"body": {"from": "old"}},
    "check_run": {"head_sha": "a" * 40},
    "check_suite": {"head_sha": "a" * 40, "head_repository": {"id": 5}},
}
EVENTS = {
    "issue_comment": ("created", "edited"),
    "pull_request_review_comment": ("created", "edited"),
    "pull_request_review": ("submitted", "edited"),
    "issues": ("opened", "edited", "labeled", "assigned", "closed", "reopened", "transferred", "deleted"),
    "pull_request": ("opened", "edited", "labeled", "assigned", "review_requested", "closed", "reopened"),
    "check_run": ("completed",),
    "check_suite": ("completed",),
    "repository": ("deleted",),
}
REPOSITORY_SAYS: dict[str, list[Any]] = {
    "id": [5, 6, 7, 7, 8, 9, 4711, 2**62],
    "name": ["shop", "evil", "Shop", "store", "store", "gone", ".", "..", "a/b", "x" * 101, "shop.git"],
    "owner": [{"login": one} for one in ("acme", "mallory", "ACME", "..", "")] + [None, {}, "acme"],
    "default_branch": ["main", "planted", "", None, "refs/heads/main", "-x", 3],
    "installation": [{"id": one} for one in (3, 4, 2**62, 0, -1, "3")] + [None, {}],
}
ODD: list[Any] = [None, True, 0, -1, 2**63, 1.5, "", "x" * 300, "\ud800", "\x00", "..", [], {}, [1], {"a": 1}, AT]
"""GitHub shows 5 and 6 as they are known, 7 under a new name, 8 for the first time; nothing else."""
KNOWN = {
    5: Repository("github.com", 5, "acme", "shop", "main", 3),
    6: Repository("github.com", 6, "mallory", "evil", "main", 4),
    7: Repository("github.com", 7, "acme", "store", "main", 3),
    9: Repository("github.com", 9, "acme", "gone", "main", 3),
}
TOLD = {
    **{key: KNOWN[key] for key in (5, 6)},
    7: replace(KNOWN[7], owner="umbrella", name="renamed", default_branch="trunk", installation_id=4),
    8: Repository("github.com", 8, "acme", "new", "main", 3),
}
POLICY = Policy(1, "bot", "bot", "threadtree")
PARSER = CommentParser("bot", VERBS.commands.values())


class Rows:
    """The table of repositories: a pool and its connection."""

    def __init__(self) -> None:
        self.stored: list[tuple[Any, ...]] = []

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["Rows"]:
        yield self

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def fetchrow(self, _: str, platform: str, repository_id: int, **_more: Any) -> dict[str, Any] | None:
        known = KNOWN.get(repository_id)
        if known is None or known.platform != platform:
            return None
        row = {field.name: getattr(known, field.name) for field in fields(known)}
        return {**row, "repository_id": row.pop("id"), "is_fresh": True}

    async def fetchval(self, _: str, *values: Any) -> str:
        self.stored.append(values)
        return "folder"


class Answering:
    """GitHub, asked for a repository by its id alone."""

    is_app = True

    async def by_id(self, repository: Repository) -> Repository:
        if (told := TOLD.get(repository.id)) is None:
            raise NotFound("not shown")
        return told


def any_payload(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return an event and a payload that says things of its repository, and is malformed in up to three places."""
    made = copy.deepcopy(PAYLOAD)
    event = chance.choice(list(EVENTS))
    made["action"] = chance.choice(EVENTS[event])
    if not event.startswith("pull"):
        made.pop("pull_request")
    named = chance.choice(list(KNOWN.values()))
    made["installation"]["id"] = named.installation_id
    made["repository"] = {"id": named.id, "name": named.name, "owner": {"login": named.owner}, "default_branch": "main"}
    for key, values in REPOSITORY_SAYS.items():
        if chance.random() < 0.2:
            (made if key == "installation" else made["repository"])[key] = chance.choice(values)
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        at = made
        while True:
            key = chance.choice(list(at))
            if isinstance(at[key], dict) and at[key] and chance.random() < 0.8:
                at = at[key]
            elif chance.random() < 0.3:
                del at[key]
                break
            else:
                at[key] = copy.deepcopy(chance.choice(ODD))
                break
    return event, made


def repositories_in(value: Any) -> Iterator[Repository]:
    """Yield all repositories in what is asked, however deep."""
    if isinstance(value, Repository):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from repositories_in(getattr(value, field.name))


def agrees(said: Repository) -> bool:
    """Return whether a payload says nothing of the repository that its row does not have."""
    known = KNOWN[said.id]
    names = (said.owner, said.name) == (known.owner, known.name)
    return names and said == replace(
        known,
        default_branch=said.default_branch and known.default_branch,
        installation_id=said.installation_id and known.installation_id,
    )


async def _play(chance: random.Random) -> tuple[int, int]:
    rows, settled, refused = Rows(), 0, 0
    pool, github = cast(Pool, rows), cast(GitHub, Answering())
    for _ in range(PAYLOADS):
        event, payload = any_payload(chance)
        # As it arrives: a lone surrogate stays one.
        body = delivery_of("g", event, _written(payload), "github.com").body
        found = read(event, parse(body), "github.com") if body is not None else None
        if found is None:
            continue
        asked = (
            failure_of(found, POLICY, PARSER)
            if isinstance(found, Unreadable)
            else action_of(found, POLICY, PARSER, on_own_pull=is_remark(found))
        )
        said = list(repositories_in(asked))
        try:
            action = await in_its_repository(pool, github, asked)
        except NotFound:
            refused += 1
            continue
        for one in repositories_in(action):
            settled += 1
            assert one.id in {named.id for named in said}, f"{one} of {event} {payload}"
            if one != TOLD.get(one.id):
                assert one == KNOWN[one.id], f"{one} of {event} {payload}"
                assert event == "repository" or all(map(agrees, said)), f"{one} of {event} {payload}"
    told = {tuple(getattr(one, field.name) for field in fields(one)) for one in TOLD.values()}
    assert set(rows.stored) <= told, "GitHub did not say so"
    return settled, refused


def _written(payload: dict[str, Any]) -> bytes:
    """Return JSON as the most careless sender writes it."""
    return json.dumps(payload).encode()


def test_nothing_is_written_of_a_repository_that_github_did_not_confirm() -> None:
    chance = random.Random(20261128 if FUZZ == 1 else None)  # noqa: S311
    settled, refused = asyncio.run(_play(chance))
    assert settled > PAYLOADS // 5
    assert refused > PAYLOADS // 100
