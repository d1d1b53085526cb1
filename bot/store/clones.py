"""Rows that tell how a clone of this node is used."""

from dataclasses import dataclass
from datetime import datetime

from bot.store.database import Connection, fetch_one

USE_OF_CLONE = """
-- 'lost' worktrees belong to the node until it has rescued them.
select b.default_branch,
       exists (select from turns t join worktrees w on w.id = t.worktree_id
               where (w.platform, w.repository_id, w.node) = (b.platform, b.repository_id, $2)
                 and t.state = 'running') as busy,
       array(select distinct w.start_ref from worktrees w
             where (w.platform, w.repository_id, w.node) = (b.platform, b.repository_id, $2)
               and w.start_kind = 'detached' and w.state <> 'removed') as pull_request_heads
from codebases b where b.folder = $1
"""


IS_CLONE_UNUSED = """
-- No worktree of the repository is on the node, nothing is rescued there, and no thread was used since $3.
select b.created_at < $3
       and not exists (select from worktrees w
                       where (w.platform, w.repository_id, w.node) = (b.platform, b.repository_id, $2)
                         and (w.state <> 'removed' or exists (select from rescues r where r.worktree_id = w.id)))
       and not exists (select from conversations c
                       where (c.platform, c.repository_id) = (b.platform, b.repository_id) and c.updated_at >= $3)
       and not exists (select from conversations c join turns t on t.conversation_id = c.id
                       where (c.platform, c.repository_id) = (b.platform, b.repository_id)
                         and t.state in ('queued', 'running'))
from codebases b where b.folder = $1
"""


@dataclass(frozen=True, slots=True)
class CloneUse:
    """The use of a clone. `busy`: a turn runs in one of its worktrees. The heads are those at which worktrees are."""

    default_branch: str | None
    busy: bool
    pull_request_heads: tuple[str, ...]


async def use_of(connection: Connection, folder: str, node: str) -> CloneUse | None:
    """Return the use of the clone in this folder on the node; None for a repository without a row."""
    return await fetch_one(connection, CloneUse, USE_OF_CLONE, folder, node)


async def is_unused(connection: Connection, folder: str, node: str, since: datetime) -> bool:
    """Return whether nothing needs the clone in this folder on the node; False for a repository without a row."""
    return bool(await connection.fetchval(IS_CLONE_UNUSED, folder, node, since))
