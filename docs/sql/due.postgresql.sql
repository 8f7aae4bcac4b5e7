-- due.delete
DELETE FROM chatlock_due
WHERE chatlock_due.tenant = :b_tenant::VARCHAR
AND chatlock_due.thread_id = :b_thread::VARCHAR;

-- due.lease
UPDATE chatlock_due
SET dispatched_until=((extract(epoch FROM clock_timestamp())*1000)::bigint + :b_lease::BIGINT)
WHERE chatlock_due.tenant = :b_tenant::VARCHAR
AND chatlock_due.thread_id = :b_thread::VARCHAR
AND (chatlock_due.dispatched_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.dispatched_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 600000)
RETURNING chatlock_due.thread_id;

-- due.list
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.due_at > (extract(epoch FROM statement_timestamp())*1000)::bigint + :b_backoff_max::BIGINT)
AND (chatlock_due.dispatched_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.dispatched_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 600000)
AND (chatlock_threads.agent IN (:b_agents) OR chatlock_threads.status != 'idle') ORDER BY chatlock_due.due_at
 LIMIT :b_limit;

-- due.list_of_anyone
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.due_at > (extract(epoch FROM statement_timestamp())*1000)::bigint + :b_backoff_max::BIGINT)
AND (chatlock_due.dispatched_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.dispatched_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 600000) ORDER BY chatlock_due.due_at
 LIMIT :b_limit;

-- due.upsert
INSERT INTO chatlock_due (tenant, thread_id, due_at, priority, dispatched_until)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_due_at::BIGINT, :b_priority::INTEGER, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE
SET due_at = excluded.due_at, priority = excluded.priority, dispatched_until = 0;
