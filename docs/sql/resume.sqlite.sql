-- resume.thread
UPDATE chatlock_threads
SET status='idle', attempts=0, stalls=0, not_before=0
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.status = 'parked'
RETURNING token;
