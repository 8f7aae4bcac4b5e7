-- due.busy
SELECT w.tenant,
       (SELECT count(*) FROM chatlock_turns r
          JOIN chatlock_threads t ON t.tenant=r.tenant
AND t.thread_id=r.thread_id
AND t.token=r.token
WHERE r.tenant=w.tenant
AND r.state='running'
AND t.expires_at>=(extract(epoch FROM statement_timestamp())*1000)::bigint)
     + (SELECT count(*)
          FROM (SELECT dispatched_until FROM chatlock_due
WHERE tenant=w.tenant
                 ORDER BY priority, due_at LIMIT :b_limit) d
WHERE d.dispatched_until>(extract(epoch FROM statement_timestamp())*1000)::bigint
AND d.dispatched_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint+600000)
  FROM jsonb_array_elements_text(CAST(:b_tenants AS jsonb)) AS w(tenant);

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
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent, chatlock_due.priority, chatlock_due.due_at
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.due_at > (extract(epoch FROM statement_timestamp())*1000)::bigint + :b_backoff_max::BIGINT
AND (chatlock_threads.quiet_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_threads.quiet_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 3600000))
AND (chatlock_due.dispatched_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.dispatched_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 600000)
AND (chatlock_threads.agent IN (:b_agents) OR chatlock_threads.status != 'idle') ORDER BY chatlock_due.due_at
 LIMIT :b_limit;

-- due.list_of_anyone
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent, chatlock_due.priority, chatlock_due.due_at
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.due_at > (extract(epoch FROM statement_timestamp())*1000)::bigint + :b_backoff_max::BIGINT
AND (chatlock_threads.quiet_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_threads.quiet_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 3600000))
AND (chatlock_due.dispatched_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_due.dispatched_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 600000) ORDER BY chatlock_due.due_at
 LIMIT :b_limit;

-- due.of_each_queue
WITH RECURSIVE queues(tenant, priority) AS (
  (SELECT tenant, priority FROM chatlock_due ORDER BY tenant, priority LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.priority FROM queues q CROSS JOIN LATERAL (
    SELECT tenant, priority FROM chatlock_due
WHERE (tenant, priority) > (q.tenant, q.priority)
     ORDER BY tenant, priority LIMIT 1) n)
SELECT f.* FROM queues q CROSS JOIN LATERAL ((
  SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at FROM chatlock_due d CROSS JOIN LATERAL (
    SELECT agent, status, quiet_until FROM chatlock_threads
WHERE tenant=d.tenant
AND thread_id=d.thread_id LIMIT 1) t
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at<=(extract(epoch FROM statement_timestamp())*1000)::bigint
AND (t.agent IN (:b_agents) OR t.status<>'idle')
AND (d.dispatched_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint OR d.dispatched_until>(extract(epoch FROM statement_timestamp())*1000)::bigint+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)) UNION ALL (
  SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at FROM chatlock_due d CROSS JOIN LATERAL (
    SELECT agent, status, quiet_until FROM chatlock_threads
WHERE tenant=d.tenant
AND thread_id=d.thread_id LIMIT 1) t
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at>(extract(epoch FROM statement_timestamp())*1000)::bigint+:b_backoff_max
AND (t.quiet_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint OR t.quiet_until>(extract(epoch FROM statement_timestamp())*1000)::bigint+3600000)
AND (t.agent IN (:b_agents) OR t.status<>'idle')
AND (d.dispatched_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint OR d.dispatched_until>(extract(epoch FROM statement_timestamp())*1000)::bigint+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues))) f;

-- due.of_each_queue_of_anyone
WITH RECURSIVE queues(tenant, priority) AS (
  (SELECT tenant, priority FROM chatlock_due ORDER BY tenant, priority LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.priority FROM queues q CROSS JOIN LATERAL (
    SELECT tenant, priority FROM chatlock_due
WHERE (tenant, priority) > (q.tenant, q.priority)
     ORDER BY tenant, priority LIMIT 1) n)
SELECT f.* FROM queues q CROSS JOIN LATERAL ((
  SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at FROM chatlock_due d CROSS JOIN LATERAL (
    SELECT agent, status, quiet_until FROM chatlock_threads
WHERE tenant=d.tenant
AND thread_id=d.thread_id LIMIT 1) t
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at<=(extract(epoch FROM statement_timestamp())*1000)::bigint
AND true
AND (d.dispatched_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint OR d.dispatched_until>(extract(epoch FROM statement_timestamp())*1000)::bigint+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)) UNION ALL (
  SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at FROM chatlock_due d CROSS JOIN LATERAL (
    SELECT agent, status, quiet_until FROM chatlock_threads
WHERE tenant=d.tenant
AND thread_id=d.thread_id LIMIT 1) t
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at>(extract(epoch FROM statement_timestamp())*1000)::bigint+:b_backoff_max
AND (t.quiet_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint OR t.quiet_until>(extract(epoch FROM statement_timestamp())*1000)::bigint+3600000)
AND true
AND (d.dispatched_until<=(extract(epoch FROM statement_timestamp())*1000)::bigint OR d.dispatched_until>(extract(epoch FROM statement_timestamp())*1000)::bigint+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues))) f;

-- due.upsert
INSERT INTO chatlock_due (tenant, thread_id, due_at, priority, dispatched_until)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_due_at::BIGINT, :b_priority::INTEGER, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE
SET due_at = excluded.due_at, priority = excluded.priority, dispatched_until = 0;
