-- Writes to GitHub are serial for each writer: an App's installation, or the token.
alter table outbox rename column lane to writer;
alter table lanes rename to writers;
alter table writers rename column lane to writer;
update procrastinate_jobs set args = jsonb_build_object('writer', args -> 'lane')
where task_name = 'outbox' and args ? 'lane';
