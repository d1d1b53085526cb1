"""Regular work of a worker: the deletion of old rows, and the name of a repository."""

from datetime import timedelta

from bot.model import Repository
from bot.store.database import Connection, repository_of

CODEBASE_NAMED = """
-- A reused name belongs to the repository that last had it.
select platform, repository_id, owner, name, default_branch, installation_id from codebases
where platform = $1 and lower(owner) = lower($2) and lower(name) = lower($3)
order by updated_at desc limit 1
"""

DELETE_OLD = {
    "bodies": "update deliveries set body = null where body is not null and received_at < now() - $1::interval",
    "deliveries": "delete from deliveries where received_at < now() - interval '1 year'",
    "effects": "delete from effects where seen_at < now() - interval '1 year'",
    "jobs": """
        delete from procrastinate_jobs j
        where status in ('succeeded', 'failed', 'cancelled', 'aborted')
          and not exists (select from procrastinate_events e
                          where e.job_id = j.id and e.at > now() - interval '30 days')
    """,
}


async def codebase_named(connection: Connection, platform: str, full_name: str) -> Repository | None:
    """Return the repository that is called `owner/name` now."""
    owner, _, name = full_name.partition("/")
    row = await connection.fetchrow(CODEBASE_NAMED, platform, owner, name)
    return repository_of(row) if row else None


async def delete_old(connection: Connection, retention: timedelta) -> None:
    """Delete bodies after their retention, and what is older than a year (DESIGN.md §4, receive)."""
    await connection.execute(DELETE_OLD["bodies"], retention)
    for statement in (DELETE_OLD["deliveries"], DELETE_OLD["effects"], DELETE_OLD["jobs"]):
        await connection.execute(statement)
