-- The engine writes a row for each step of a job. Only when a job ended is read, by the clean-up of those that are not
-- deleted at once. The engine's triggers stay, for a later version of its schema may name them.
alter table procrastinate_jobs disable trigger procrastinate_trigger_status_events_insert_v1;
alter table procrastinate_jobs disable trigger procrastinate_trigger_status_events_update_v1;

create trigger threadtree_event_when_a_job_ends
    after update of status on procrastinate_jobs
    for each row when (new.status not in ('todo', 'doing'))
    execute function procrastinate_trigger_function_status_events_update_v1();
