-- promote.thread
UPDATE chatlock_threads
SET quiet_until=0, priority=:b_priority::INTEGER
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.last_seq > chatlock_threads.done_seq
RETURNING chatlock_threads.token;
