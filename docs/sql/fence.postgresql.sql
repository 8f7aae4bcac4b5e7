-- fence.bound_idle
SET LOCAL idle_in_transaction_session_timeout = '10s';

-- fence.lock
SELECT chatlock_threads.token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running' FOR NO KEY UPDATE;

-- fence.raise_highest
INSERT INTO chatlock_fences (tenant, thread_id, resource, highest)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_resource::VARCHAR, :b_token::BIGINT)
ON CONFLICT (tenant, thread_id, resource) DO UPDATE
SET highest = excluded.highest
WHERE chatlock_fences.highest <= excluded.highest
RETURNING chatlock_fences.highest;
