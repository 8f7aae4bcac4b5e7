-- fence.raise_highest
INSERT INTO chatlock_fences (tenant, thread_id, resource, highest)
VALUES (:b_tenant, :b_thread, :b_resource, :b_token)
ON CONFLICT (tenant, thread_id, resource) DO UPDATE
SET highest = excluded.highest
WHERE chatlock_fences.highest <= excluded.highest
RETURNING highest;

-- fence.touch
UPDATE chatlock_threads
SET beat=chatlock_threads.beat
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running'
RETURNING token;
