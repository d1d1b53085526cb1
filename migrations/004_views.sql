-- What many statements ask of worktrees, defined once.

alter table worktrees add check (start_kind <> 'detached' or start_sha is not null);

-- A worktree with its repository and the numbers of the threads that use it.
create view worktree_rows as
select w.id as worktree_id, w.node, w.path, w.state as worktree_state, w.branch, w.base_branch,
       w.start_kind, w.start_number, w.start_ref, w.start_sha,
       w.created_at as worktree_created_at, w.updated_at as worktree_updated_at,
       array(select c.number from conversations c where c.worktree_id = w.id order by c.number) as conversations,
       w.platform, w.repository_id, b.owner, b.name, b.folder, b.default_branch, b.installation_id
from worktrees w join codebases b using (platform, repository_id);

-- The worktrees in which a turn or an operation waits or runs. One may occur more than once.
create view worktree_busy as
select worktree_id from turns where state in ('queued', 'running')
union all
select worktree_id from operations where state in ('queued', 'running');
