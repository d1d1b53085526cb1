-- A transaction that notifies waits at its commit for every other one that does, until those are on the disk. A group of
-- deliveries is committed without: whoever commits it rings afterwards. Other queues ring as the engine does.
-- Disabled, not dropped: migrations of the engine may name its triggers.
alter table procrastinate_jobs disable trigger procrastinate_jobs_notify_queue_job_inserted_v1;

create trigger threadtree_wake_queue_when_a_job_waits
    after insert on procrastinate_jobs
    for each row when (new.status = 'todo' and new.queue_name <> 'decide')
    execute function procrastinate_notify_queue_job_inserted_v1();
