-- The engine writes the history of each job: a third of what it costs to enqueue one and to take it. Only its end is
-- read, which tells how long a job that did not succeed is kept.
alter table procrastinate_jobs disable trigger procrastinate_trigger_status_events_insert_v1;

-- Of the same name, for the engine's own migrations may replace it.
drop trigger procrastinate_trigger_status_events_update_v1 on procrastinate_jobs;
create trigger procrastinate_trigger_status_events_update_v1
    after update of status on procrastinate_jobs
    for each row when (new.status not in ('todo', 'doing'))
    execute function procrastinate_trigger_function_status_events_update_v1();
