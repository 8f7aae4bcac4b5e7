-- park.thread
UPDATE chatlock_threads
SET status='parked'
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.status = 'idle'
RETURNING token;
