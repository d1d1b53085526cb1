"""What a kill meets: by what the rows say right then."""

from collections import Counter
from contextlib import suppress

import asyncpg

AT_WORK = """
select case when t.id is not null then 'running ' || r.verb || ': ' || case
           when t.answer is not null then 'its answer is there'
           when exists (select from steps s where s.turn_id = t.id) then 'its agent works'
           when t.head_before is not null then 'its agent starts' else 'before its agent' end end
from turns t join requests r on r.turn_id = t.id where t.state = 'running'
union all select 'a write to GitHub' where exists (select from outbox where state = 'sending')
union all select 'a decision' where exists (
    select from procrastinate_jobs where status = 'doing' and task_name = 'decide')
union all select 'a removal' where exists (select from worktrees where state = 'removing')
"""
SECONDS = 0.5


class Hits:
    """Counts what was being done when something was killed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection | None = None
        self.met = Counter[str]()

    async def look(self) -> list[str] | None:
        """Return what is being done; None where the database does not answer."""
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self._dsn, timeout=SECONDS)
            return [row[0] for row in await self._connection.fetch(AT_WORK, timeout=SECONDS)]
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            if self._connection is not None:
                self._connection.terminate()
            self._connection = None
            return None

    def note(self, found: list[str] | None) -> None:
        """Count one kill that met this."""
        match found:
            case None:
                self.met["unknown: no database"] += 1
            case []:
                self.met["nothing at work"] += 1
            case _:
                self.met.update(set(found))
                self.met["some turn runs"] += any(one.startswith("running") for one in found)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                await self._connection.close(timeout=SECONDS)
