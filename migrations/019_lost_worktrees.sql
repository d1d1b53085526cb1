-- A worktree whose node is silent is `lost`. When the node is back it removes it, after a rescue: for the cause 'lost'.
alter table worktrees drop constraint worktrees_removal_check;
alter table worktrees add constraint worktrees_removal_check
    check (removal in ('closed', 'command', 'retention', 'purged', 'lost'));
alter table rescues drop constraint rescues_removal_check;
alter table rescues add constraint rescues_removal_check
    check (removal in ('closed', 'command', 'retention', 'purged', 'lost'));
create index worktrees_lost on worktrees (node) where state = 'lost';
