-- park.thread
UPDATE chatlock_threads
SET status='parked'
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.status = 'idle'
RETURNING chatlock_threads.token;
