-- resume.thread
UPDATE chatlock_threads
SET status='idle', attempts=0, stalls=0, not_before=0
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.status = 'parked'
RETURNING chatlock_threads.token;
