"""Rows of worktrees as reconciliation compares them with disk and git."""

from collections.abc import Sequence
from datetime import datetime

from bot.store.database import Connection, statement


@statement("""
-- How many runs ended there, and why the last one did not end well.
select count(*), (array_agg(case when state <> 'done' then reason end order by finished_at desc, id desc))[1]
from turns where worktree_id = $1 and started_at is not null and finished_at is not null
""")
async def runs_in(connection: Connection, worktree_id: int) -> tuple[int, str | None]:
    """Return how many turns ran in the worktree, and the error of the last one: what its metadata counts."""


@statement("select max(id) from worktrees where node = $1 and path = any ($2::text[]) and state = 'removed'")
async def removed_at(connection: Connection, node: str, names: Sequence[str]) -> int | None:
    """Return the id of the worktree that was the last to be removed at the path with these names."""


@statement("select exists (select from codebases where (platform, repository_id, folder) = ($1, $2, $3))")
async def is_codebase(connection: Connection, platform: str, repository_id: int, folder: str) -> bool:
    """Return whether this is a known repository, with its clone in this folder."""


@statement("select folder from codebases where lower(owner || '/' || name) = lower($1)")
async def folders_of(connection: Connection, repository: str) -> set[str]:
    """Return the folders of the clones of `owner/name`."""


@statement("""
-- An orphan whose row was lost: its rescue is found by this row, and can be restored.
update worktrees set state = 'removed', removal = 'retention', branch = $2, base_branch = $3, created_at = $4
where id = $1
""")
async def record_removed(
    connection: Connection, worktree_id: int, branch: str | None, base_branch: str | None, created_at: datetime
) -> None:
    """Record that a worktree whose row was lost, and reserved again, was made then and is removed."""


@statement("""
-- Of a reserved one the start tells the branch.
select coalesce(w.branch, w.start_ref) from worktrees w join codebases b using (platform, repository_id)
where b.folder = $1 and w.node = $2 and (w.state <> 'removed' or w.removal = 'purged')
  and (w.branch is not null or w.start_kind = 'head')
""")
async def branches_in(connection: Connection, folder: str, node: str) -> list[str]:
    """Return the branches of a clone's worktrees on this node that are there, or will be made again."""


@statement("""
-- Of these rescues of the clone's worktrees, those without a row.
select given.ref from unnest($2::bigint[], $3::text[]) as given (id, ref)
join worktrees w on w.id = given.id join codebases b using (platform, repository_id)
where b.folder = $1 and not exists (select from rescues r where r.worktree_id = w.id and r.ref = given.ref)
""")
async def not_on_record(connection: Connection, folder: str, worktrees: Sequence[int], refs: Sequence[str]) -> set[str]:
    """Return those of the refs, each of the worktree at its place, that no rescue's row names."""


@statement("select ref from rescues where worktree_id = any ($1::bigint[]) and ref is not null")
async def indexed(connection: Connection, worktrees: Sequence[int]) -> set[str]:
    """Return the refs of these worktrees' rescues that have a row."""
