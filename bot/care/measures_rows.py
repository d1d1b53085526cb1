"""The figures of the bot: counts that processes add to, and what is counted in rows when it is asked for."""

from bot import counters
from bot.store.database import DATABASE_AWAY, Connection, Pool, statement

ADD = """
-- Sorted, so that two processes cannot wait for each other's rows. What is not added ($4) is the latest value.
insert into counters (name, label, value)
select * from unnest($1::text[], $2::text[], $3::float8[]) as new (name, label, value) order by name, label
on conflict (name, label) do update set value = excluded.value + case when $4 then counters.value else 0 end
"""


async def save_counts(pool: Pool) -> None:
    """Add the counts of this process to those of all. What an outage prevents is added later."""
    added, latest = counters.take()
    if not added and not latest:
        return
    try:
        async with pool.acquire() as connection, connection.transaction():
            for values, is_added in ((added, True), (latest, False)):
                if values:
                    names, labels = zip(*values, strict=True)
                    await connection.execute(ADD, names, labels, list(values.values()), is_added)
    except BaseException as problem:
        counters.give_back(added, latest)
        if not isinstance(problem, DATABASE_AWAY):
            raise


@statement("select name, label, value from counters order by name, label")
async def counted(connection: Connection) -> list[tuple[str, str, float]]:
    """Return what the processes counted: the name of each sample, its labels as JSON, its value."""


@statement("""
-- The view, and the jobs of the engine, whose tables are its own to change: no view of ours is in its way.
select figure, sample, labels::text, value from figures
union all
select 'jobs', '', jsonb_build_object('queue', queue_name, 'status', status)::text, count(*)::float8
from procrastinate_jobs where status in ('todo', 'doing', 'failed') group by queue_name, status
""")
async def figures(connection: Connection) -> list[tuple[str, str, str, float]]:
    """Return what is counted in rows now: the figure, its sample, its labels as JSON, its value."""
