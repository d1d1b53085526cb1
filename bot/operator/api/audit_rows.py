"""The record of who did what: each change that a person made beside asking the agent."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from bot.store.database import Connection, statement


@dataclass(frozen=True, slots=True)
class Entry:
    """What somebody did. Its outcome is that of the `turn`, the `operations` or the `delivery`, or else `outcome`.

    `person` is a login, `admin-token` or `command line (USER)`; `details` are JSON.
    """

    person: str
    channel: Literal["dashboard", "API", "command line"]
    action: str
    target: str
    codebase: str | None = None
    details: str = "{}"
    turn: int | None = None
    operations: tuple[int, ...] = ()
    delivery: str | None = None
    outcome: str | None = None


@statement("""
insert into audit (person, channel, action, target, codebase, details, turn, operations, delivery, outcome)
values ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8::bigint[], $9, $10)
""")
async def record(connection: Connection, entry: Entry) -> None:
    """Record it, in the caller's transaction."""


async def codebase_of(connection: Connection, kind: str, key: int | str) -> str | None:
    """Return the repository of a row of one of the lists; None where that has none."""
    column = "guid" if kind == "deliveries" else "id"
    found: str | None = await connection.fetchval(f"select codebase from listed_{kind} where {column} = $1", key)  # noqa: S608 - of constants
    return found or (await codebase_of(connection, "orphans", key) if kind == "worktrees" else None)


@statement("""
select * from listed_audit
where ($2::bigint is null or place < $2) and ($3::text is null or lower(codebase) = lower($3))
  and ($4::text is null or lower(person) = lower($4)) and ($5::timestamptz is null or at >= $5)
order by place desc limit $1
""")
async def newest(
    connection: Connection,
    limit: int,
    before: int | None,
    repository: str | None,
    person: str | None,
    since: datetime | None,
) -> list[dict[str, Any]]:
    """Return the newest entries of this repository, of this person and since then, with their outcomes."""
