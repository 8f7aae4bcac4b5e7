-- due.delete
DELETE FROM chatlock_due
WHERE chatlock_due.tenant = :b_tenant
AND chatlock_due.thread_id = :b_thread;

-- due.lease
UPDATE chatlock_due
SET dispatched_until=(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_lease)
WHERE chatlock_due.tenant = :b_tenant
AND chatlock_due.thread_id = :b_thread
AND (chatlock_due.dispatched_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.dispatched_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 600000)
RETURNING thread_id;

-- due.list
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.due_at > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_backoff_max)
AND (chatlock_due.dispatched_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.dispatched_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 600000)
AND (chatlock_threads.agent IN (:b_agents) OR chatlock_threads.status != 'idle') ORDER BY chatlock_due.due_at
 LIMIT :b_limit OFFSET 0;

-- due.list_of_anyone
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.due_at > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_backoff_max)
AND (chatlock_due.dispatched_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.dispatched_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 600000) ORDER BY chatlock_due.due_at
 LIMIT :b_limit OFFSET 0;

-- due.upsert
INSERT INTO chatlock_due (tenant, thread_id, due_at, priority, dispatched_until)
VALUES (:b_tenant, :b_thread, :b_due_at, :b_priority, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE
SET due_at = excluded.due_at, priority = excluded.priority, dispatched_until = 0;
