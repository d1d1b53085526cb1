"""Rows about the checks of what the bot pushed: whose head a commit is, and what was done about its checks."""

import hashlib
from dataclasses import dataclass, field
from uuid import uuid4

import orjson

from bot.ask import Ask
from bot.model import Repository, ThreadKind, ThreadRef
from bot.store import deliveries
from bot.store.database import Connection, Pool, read, statement
from bot.store.deliveries import NewDelivery


@dataclass(frozen=True, slots=True)
class OwnHead:
    """A head that the bot pushed to `branch` for the turn `turn_id`, which asked `ask`.

    `is_fix`: that turn was to fix the checks of the head before. `attempts`: the heads of all such turns since a person
    asked; `met_push`: while one of them ran, somebody else pushed. `of_day`: how many came in the last 24 hours.
    `autofix` is what the thread's people chose, None for the repository's rule. `folder` is the clone's.
    """

    thread_ref: ThreadRef
    number: int
    kind: ThreadKind
    title: str
    folder: str
    autofix: bool | None
    turn_id: int
    branch: str
    ask: Ask
    is_fix: bool
    attempts: tuple[str, ...]
    met_push: bool
    of_day: int = field(compare=False)

    @property
    def repository(self) -> Repository:
        """The repository of the thread."""
        return self.thread_ref.repository


CHOSEN = "coalesce(c.autofix, (select bool_or(o.autofix) from conversations o where o.worktree_id = c.worktree_id))"
"""What the people of the thread chose, or of one that shares its worktree; null where they chose nothing."""


@statement(f"""
-- Of an open thread in which nothing runs or waits: whatever does rings at its end. Its worktree may be purged.
select c.id as conversation_id, c.number, c.kind, c.title, {CHOSEN} as autofix, t.id as turn_id, t.pushed_to as branch,
       r.ask, (r.ask -> 'of') ? 'head' as is_fix,
       chain.*, b.*
from turns t
join requests r on r.turn_id = t.id and r.verb <> 'undo' -- what a person takes back is not fixed
join conversations c on c.id = t.conversation_id
join codebases b on (b.platform, b.repository_id) = (c.platform, c.repository_id)
join worktrees w on w.id = c.worktree_id and w.branch = t.pushed_to
                 and (w.is_live or (w.state = 'removed' and w.removal = 'purged'))
cross join lateral (
    select coalesce(array_agg(f.ask #>> '{{of,head}}' order by f.turn_id) filter (where is_since), '{{}}') as attempts,
           coalesce(bool_or(s.met_push) filter (where is_since), false) as met_push,
           count(*) filter (where f.asked_at > now() - interval '1 day') as of_day
    from (select coalesce(max(p.turn_id), 0) as last from requests p
          where p.conversation_id = c.id and (not (p.ask -> 'of') ? 'head' or p.retry_of is not null)) p
    join requests f on f.conversation_id = c.id and (f.ask -> 'of') ? 'head' join turns s on s.id = f.turn_id
    cross join lateral (select f.turn_id >= p.last as is_since) as which
) chain
where t.pushed_head = $3 and (c.platform, c.repository_id) = ($1, $2) and c.state = 'open'
  and t.stop_requested_at is null -- a stop that came too late for the push
  and not exists (select from turns o where o.state in ('queued', 'running')
                                        and (o.conversation_id = c.id or o.worktree_id = w.id))
  and not exists (select from turns o where o.pushed_to = t.pushed_to and o.id > t.id
                                        and o.worktree_id = w.id and o.pushed_head <> t.pushed_head)
order by t.id desc limit 1 for no key update of c
""")  # noqa: S608 - of constants
async def own_head(connection: Pool | Connection, platform: str, repository_id: int, head: str) -> OwnHead | None:
    """Return the turn that pushed this head, None where it is no head of the bot's about which something may be done.

    The thread's row is locked until the caller's transaction ends.
    """


async def chosen(connection: Connection | Pool, conversation_id: int) -> bool | None:
    """Return whether the thread's people want failing checks to be fixed; None where they chose nothing."""
    asked = f"select {CHOSEN} from conversations c where id = $1"  # noqa: S608 - of constants
    found: bool | None = await connection.fetchval(asked, conversation_id)
    return found


@statement("""
update conversations set autofix = $2, updated_at = now() where id in (
    select $1 union
    select o.id from conversations c join conversations o using (worktree_id) where c.id = $1 union
    select o.id from conversations c join conversations o using (platform, repository_id)
    where c.id = $1 and o.number = c.pull_request union
    select o.id from conversations c join pull_requests p using (platform, repository_id, number)
                                     join conversations o using (platform, repository_id)
    where c.id = $1 and o.number = p.closes
) returning id
""")
async def choose(connection: Connection, conversation_id: int, autofix: bool) -> list[int]:
    """Record what the thread's people chose, for it and the threads that work on its branch; return all of them."""


LAST_PUSHED = """
(select (array_agg(t.pushed_head order by t.id desc))[1]
 from (select c.id
       union select w.id from conversations w where w.worktree_id = c.worktree_id
       union select i.id from pull_requests p
             join conversations i on (i.platform, i.repository_id, i.number) = (p.platform, p.repository_id, p.closes)
             where (p.platform, p.repository_id, p.number) = (c.platform, c.repository_id, c.number)) o
 join turns t on t.conversation_id = o.id
 where t.pushed_head is not null)
"""
"""The head that was pushed last for the thread `c`, for one that shares its worktree, or for the issue for which the
bot opened it.
"""


@statement(f"""
-- The key is that of `effect`.
insert into effects (key)
select sha256(convert_to('checks/' || c.platform || '/' || c.repository_id || '/' || {LAST_PUSHED}, 'UTF8'))
from conversations c where c.id = $1 and {LAST_PUSHED} is not null on conflict do nothing
""")  # noqa: S608 - of constants
async def leave_alone(connection: Connection, conversation_id: int) -> None:
    """Let no request begin because of the checks of what was pushed last: the thread was closed, or somebody stops."""


def effect(repository: Repository, head: str, what: str = "checks") -> bytes:
    """Return the key under which something is done about a head only once."""
    return hashlib.sha256(f"{what}/{repository.platform}/{repository.id}/{head}".encode()).digest()


NEWEST_HEAD = f"""
select {LAST_PUSHED} as head, b.* from conversations c
join codebases b on (b.platform, b.repository_id) = (c.platform, c.repository_id)
where c.id = $1 and coalesce({CHOSEN}, $2)
"""  # noqa: S608 - of constants


async def ring(connection: Connection, conversation_id: int, *, autofix: bool) -> None:
    """Let the checks of what was pushed last be looked at, last in the caller's transaction: a turn there has ended.

    What GitHub told of them came perhaps before the push was recorded, or while something ran. `autofix` is the rule
    where the thread's people chose nothing.
    """
    row = await connection.fetchrow(NEWEST_HEAD, conversation_id, autofix)
    if row is None or row["head"] is None:
        return
    repository = read(Repository, row)
    # As GitHub would send it.
    about = {"id": repository.id, "name": repository.name, "owner": {"login": repository.owner}}
    body = {"action": "completed", "repository": about, "check_suite": {"head_sha": row["head"]}}
    lock_key = f"{repository.platform}/{repository.id}@{row['head']}"
    bell = NewDelivery(str(uuid4()), "check_suite", "received", "completed", lock_key=lock_key, body=orjson.dumps(body))
    await deliveries.store(connection, [bell])
