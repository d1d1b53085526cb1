"""Rows about a thread and the pull requests of its branch: what was asked and answered, opened, merged and closed."""

from typing import Any

from bot.store.database import Connection, statement
from bot.store.scope import Scope


@statement("""
-- By its own number, else as the pull request of a thread's branch.
select c.id from codebases b cross join lateral (
    select id, 0 as place from conversations c
    where (c.platform, c.repository_id, c.number) = (b.platform, b.repository_id, $2)
    union all
    select c.id, 1 from pull_requests p join conversations c
        on (c.platform, c.repository_id, c.number) = (p.platform, p.repository_id, p.closes)
    where (p.platform, p.repository_id, p.number) = (b.platform, b.repository_id, $2)) c
where lower(b.owner || '/' || b.name) = lower($1) and threadtree_sees($3, $4, b.platform, b.repository_id)
order by c.place limit 1
""")
async def conversation_named(connection: Connection, repository: str, number: int, scope: Scope) -> int | None:
    """Return the id of the thread `number` of the repository `owner/name`, or of which it is the pull request."""


RELATED = """
-- An issue and the pull requests of its branch are one story.
with this as (select platform, repository_id, number from conversations where id = $1),
related as (
    select * from this
    union select platform, repository_id, p.number
    from this join pull_requests p using (platform, repository_id) where p.closes = this.number
    union select platform, repository_id, p.closes
    from this join pull_requests p using (platform, repository_id, number)
)
"""


@statement(f"""
{RELATED}
select listed.* from (
    select t.id from related join conversations c using (platform, repository_id, number)
                     join turns t on t.conversation_id = c.id
    order by t.id desc limit $2) newest join listed_turns listed using (id)
where threadtree_sees($3, $4, platform, repository_id)
order by id desc
""")  # noqa: S608 - of constants
async def turns(connection: Connection, conversation_id: int, limit: int, scope: Scope) -> list[dict[str, Any]]:
    """Return the newest requests of a thread and of the pull requests of its branch."""


@statement(f"""
{RELATED}
select number, coalesce(p.titles[cardinality(p.titles)], '') as title,
       coalesce(o.opened_at, p.opened_at) as opened_at, o.closed_at, o.merged, o.reverted_by
from related left join pull_requests p using (platform, repository_id, number)
     left join outcomes o using (platform, repository_id, number)
where p.branch is not null or o.branch is not null
""")  # noqa: S608 - of constants
async def pull_requests(connection: Connection, conversation_id: int) -> list[dict[str, Any]]:
    """Return the pull requests of a thread's branch, and what became of them."""
