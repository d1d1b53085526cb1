"""Errors of Postgres, raised by triggers: those that pass delay, and no error ends a process or another's work."""

import asyncio

import pytest

from bot.care import upkeep_rows as upkeep
from bot.store.database import Connection
from tests.support.patience import PATIENCE_SECONDS
from tests.support.world import World

RAISE_IN_TURN = """
-- The first statements that {change} `{table}` fail with these codes; a sequence counts on when they are rolled back.
create sequence fault_of_{table};
create function fail_{table}() returns trigger language plpgsql as $$
declare code text := ('{codes}'::text[])[nextval('fault_of_{table}')];
begin
    if code is not null then raise exception 'a fault' using errcode = code; end if;
    return new;
end $$;
create trigger fault before {change} on {table} for each row execute function fail_{table}();
"""


@pytest.mark.expects_errors
async def test_no_error_of_the_database_loses_a_request_or_ends_the_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, end_suspended = asyncio.Event(), upkeep.end_suspended

    async def look(connection: Connection) -> None:
        await end_suspended(connection)
        looked.set()

    monkeypatch.setattr(upkeep, "end_suspended", look)
    await world.until("exists (select from nodes where heartbeat_at > '-infinity')")  # a process may not start so
    for table, codes in {
        "deliveries": "{25006}",  # decide, in a read-only database: tried again
        "turns": "{57014,22012}",  # a claim that is cancelled, and one that meets a bug
        "outbox": "{53100}",  # the sender, on a full disk
        "nodes": "{42703}",  # the tick, with a bug
    }.items():
        await world.database.execute(RAISE_IN_TURN.format(table=table, codes=codes, change="update"))
    for table, codes in {
        "codebases": "{23505}",  # decide, where another decision writes the repository at the same time
        "worktrees": "{23505,23505}",
    }.items():
        await world.database.execute(RAISE_IN_TURN.format(table=table, codes=codes, change="insert"))
    issue = await world.maria.opens_issue("Faults", "@threadtree-bot say hello")

    await issue.hears("hello")

    assert await world.turns("state", "cut_offs") == [("done", 0)]
    for table in ("deliveries", "turns", "outbox", "nodes", "codebases", "worktrees"):
        assert await world.database.fetchval(f"select last_value > 1 from fault_of_{table}")  # noqa: S608 - our names
    async with asyncio.timeout(PATIENCE_SECONDS):
        await looked.wait()  # for sessions of suspended processes
