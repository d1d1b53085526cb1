-- What many statements ask, defined once.

-- A thread's name for people.
create view conversation_names as
select c.id, b.owner || '/' || b.name || '#' || c.number as conversation
from conversations c join codebases b using (platform, repository_id);

-- A worktree with its repository and the numbers of the threads that use it.
create view worktree_rows as
select w.id as worktree_id, w.node, w.path, w.state as worktree_state, w.is_live, w.branch, w.base_branch,
       w.start_kind, w.start_number, w.start_ref, w.start_sha, w.ask_closes,
       w.created_at as worktree_created_at, w.updated_at as worktree_updated_at,
       array(select c.number from conversations c where c.worktree_id = w.id order by c.number) as conversations,
       w.platform, w.repository_id, b.owner, b.name, b.folder, b.default_branch, b.installation_id
from worktrees w join codebases b using (platform, repository_id);

-- The worktrees in which a turn waits or runs. One may occur more than once.
create view worktree_busy as select worktree_id from turns where state in ('queued', 'running');

-- The branch to which no turn of a thread has switched the thread's worktree yet; null: none is pending. A turn that
-- ended before the switch leaves it to the next one.
create view pending_switches as
select c.id as conversation_id, (
    select t.switch_to from turns t
    where t.conversation_id = c.id and t.worktree_id = c.worktree_id and t.switch_to is not null
      and not exists (select from turns s
                      where s.conversation_id = c.id and s.worktree_id = c.worktree_id and s.head_before is not null)
    order by t.id desc limit 1) as switch_to
from conversations c;

-- A rescue with its node and its repository.
create view rescue_rows as
select r.id, r.worktree_id, r.ref, r.kept, r.removal, r.conversations, r.branch, r.files, r.commits, r.bytes,
       r.created_at, r.restored_at, w.node, w.platform, w.repository_id, b.owner || '/' || b.name as codebase, b.folder,
       n.name as node_name
from rescues r join worktrees w on w.id = r.worktree_id join codebases b using (platform, repository_id)
join nodes n on n.id = w.node;

-- What lies among the worktrees without a row, with the repository of its folder.
create view orphan_rows as
select o.id, o.node, o.path, o.seen_at, coalesce(b.owner || '/' || b.name, o.folder) as codebase
from (select *, split_part(path, '/', 2) || '/' || split_part(path, '/', 3) as folder from orphans) o
left join codebases b using (folder);

-- Final comments that GitHub refused for good. Where another comment links one, that comment carries its text instead.
create view unposted_answers as
select turn_id, part, error from outbox o
where kind = 'comment' and turn_id is not null and state = 'failed' and urgency = 1
  and not exists (select from outbox linking where linking.waits_for = o.id and linking.state <> 'failed');

-- Repositories to which the bot may not write now, because GitHub limits their writer.
create view held_repositories as
select b.platform, b.repository_id, h.held_until
from codebases b join writers h on h.writer = b.platform || '/' || coalesce(b.installation_id::text, 'token');

-- Directories in the way of worktree w: l is being removed, or is lost and not let go yet, and has the path or the branch
-- of w. One that was lost before its row knew its branch is on the branch of its issue.
create view directories_in_the_way as
select w.id as worktree_id, l.id as directory_of, l.removal_error
from worktrees w
join worktrees l on l.node = w.node and l.id <> w.id and l.state in ('removing', 'lost')
     and (l.path = w.path
          or (l.platform, l.repository_id) = (w.platform, w.repository_id)
             and (l.branch = coalesce(w.branch, w.start_ref)
                  or l.branch is null and (l.start_kind, l.start_number) = (w.start_kind, w.start_number)));

-- May this queued turn run now, and if not, why? A view with the time of whoever asks. Without obstacle, a turn is
-- claimed as soon as its node has room. A turn without an agent goes in line with all turns of its worktree, and may work
-- where that was removed. The cheap questions come before those that look at other rows. Whoever asks
-- restricts it to queued turns: with the state here, an index of what waits would be read whole for each turn while the
-- statistics are those of a quiet time.
create function turn_obstacles(at timestamptz) returns table (turn_id bigint, obstacle text) language sql stable as $$
    select t.id, case
        when t.not_before > at then 'time'
        when t.worktree_id in (select r.worktree_id from turns r where r.state = 'running') then 'turn'
        when t.id > (select min(e.id) from turns e
                     where e.conversation_id = t.conversation_id and e.state in ('queued', 'running')) then 'turn'
        when t.id > case when t.needs_agent then
                        (select min(e.id) from turns e where e.worktree_id = t.worktree_id
                         and e.state in ('queued', 'running') and not e.needs_agent)
                    else (select min(e.id) from turns e where e.worktree_id = t.worktree_id
                          and e.state in ('queued', 'running')) end then 'turn'
        when t.needs_agent and exists (select from held_repositories h
                     where (h.platform, h.repository_id) = (t.queue_platform, t.queue_repository_id)
                       and h.held_until > at) then 'github-limit'
        when (select not w.is_live and (t.needs_agent or w.state <> 'removed') from worktrees w where w.id = t.worktree_id)
            then 'worktree'
        when exists (select from directories_in_the_way d where d.worktree_id = t.worktree_id) then 'directory'
    end
    from turns t
$$;

-- What may be sent to GitHub once it is due.
-- Left out: a later part of a turn until its earlier one is on GitHub, and a row that waits for another comment's
-- address (unless that comment was refused). An earlier part that waits for this very row delays nothing. Left out as
-- well: the answer of a turn (urgency 1) while one of an earlier turn of the conversation waits. All are asked row by
-- row, in the order of an index: a join would read all that waits. While the statistics are those of a quiet time, so
-- would `exists` with the states of what waits: hence the first answer in order, and `not in` for a part of a turn.
create view sendable as
select o.* from outbox o
where o.state in ('waiting', 'sending')
  and coalesce((select linked.comment_url is not null or linked.state = 'failed'
                from outbox linked where linked.id = o.waits_for), true)
  and case when o.part > 1 then
      not exists (select from outbox earlier where earlier.kind = 'comment' and earlier.turn_id = o.turn_id
                    and earlier.part < o.part and earlier.comment_id is null
                    and earlier.state not in ('sent', 'failed') and earlier.waits_for is distinct from o.id)
      else true end
  and case when o.urgency = 1 and o.turn_id is not null then
      o.turn_id = (select first.turn_id from outbox first where first.conversation_id = o.conversation_id
                     and first.urgency = 1 and first.state in ('waiting', 'sending') order by first.turn_id limit 1)
      else true end;
