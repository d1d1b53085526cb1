-- A node is its DATA_DIR: the id is stored there, and the name is a label that may change. Worktrees' paths are
-- relative to DATA_DIR; a node makes those of an older version relative when it starts, since only it knows DATA_DIR.
alter table nodes rename column name to id;
alter table nodes add column name text not null default '';
update nodes set name = id;
alter table nodes add column place text;                             -- where its DATA_DIR is, while a process of it runs
alter table nodes add column claimed boolean not null default false; -- a DATA_DIR has this id; false: of an older version
alter table nodes alter column claimed set default true;

create or replace view rescue_rows as
select r.id, r.worktree_id, r.ref, r.kept, r.removal, r.conversations, r.branch, r.files, r.commits, r.bytes,
       r.created_at, r.restored_at, w.node, w.platform, w.repository_id, b.owner || '/' || b.name as codebase, b.folder,
       n.name as node_name
from rescues r join worktrees w on w.id = r.worktree_id join codebases b using (platform, repository_id)
join nodes n on n.id = w.node;
