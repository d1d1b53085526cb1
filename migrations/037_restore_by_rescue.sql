-- An operator restores a rescue by its id, in the worktree in which its thread works now.
do $$
declare old text;
begin
    select conname into strict old from pg_constraint
    where conrelid = 'operations'::regclass and contype = 'c' and pg_get_constraintdef(oid) like '%rescue_id%';
    execute format('alter table operations drop constraint %I', old);
end $$;
alter table operations add check (kind <> 'drop' or rescue_id is not null);
alter table operations add check (kind in ('drop', 'restore') or rescue_id is null);
