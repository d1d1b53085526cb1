-- The priority of a conversation's next decision is that of its last one at most: see what is stored with a delivery.
create index threadtree_jobs_by_lock on procrastinate_jobs (lock, priority) where status in ('todo', 'doing');
