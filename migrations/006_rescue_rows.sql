-- A rescue with its node and its repository.
create view rescue_rows as
select r.id, r.worktree_id, r.ref, r.kept, r.removal, r.conversations, r.branch, r.files, r.commits, r.bytes,
       r.created_at, r.restored_at, w.node, w.platform, w.repository_id, b.owner || '/' || b.name as codebase, b.folder
from rescues r join worktrees w on w.id = r.worktree_id join codebases b using (platform, repository_id);
