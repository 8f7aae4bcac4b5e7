-- promote.thread
UPDATE chatlock_threads
SET quiet_until=0, priority=:b_priority
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.last_seq > chatlock_threads.done_seq
RETURNING token;
