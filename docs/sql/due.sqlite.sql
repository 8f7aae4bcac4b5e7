-- due.busy
SELECT w.tenant,
       (SELECT count(*) FROM chatlock_turns r
          JOIN chatlock_threads t ON t.tenant=r.tenant
AND t.thread_id=r.thread_id
AND t.token=r.token
WHERE r.tenant=w.tenant
AND r.state='running'
AND t.expires_at>=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER))
     + (SELECT count(*)
          FROM (SELECT dispatched_until FROM chatlock_due
WHERE tenant=w.tenant
                 ORDER BY priority, due_at LIMIT :b_limit) d
WHERE d.dispatched_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
AND d.dispatched_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+600000)
  FROM (SELECT value AS tenant FROM json_each(:b_tenants)) w;

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
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent, chatlock_due.priority, chatlock_due.due_at
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.due_at > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_backoff_max
AND (chatlock_threads.quiet_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_threads.quiet_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 3600000))
AND (chatlock_due.dispatched_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.dispatched_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 600000)
AND (chatlock_threads.agent IN (:b_agents) OR chatlock_threads.status != 'idle') ORDER BY chatlock_due.due_at
 LIMIT :b_limit OFFSET 0;

-- due.list_of_anyone
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_threads.agent, chatlock_due.priority, chatlock_due.due_at
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE (chatlock_due.due_at <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.due_at > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_backoff_max
AND (chatlock_threads.quiet_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_threads.quiet_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 3600000))
AND (chatlock_due.dispatched_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_due.dispatched_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 600000) ORDER BY chatlock_due.due_at
 LIMIT :b_limit OFFSET 0;

-- due.of_each_queue
WITH RECURSIVE queues(tenant, priority) AS (
  SELECT * FROM (SELECT tenant, priority FROM chatlock_due ORDER BY tenant, priority LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.priority FROM queues q CROSS JOIN chatlock_due n ON n.rowid = coalesce(
    (SELECT rowid FROM chatlock_due
WHERE tenant=q.tenant
AND priority>q.priority ORDER BY priority LIMIT 1),
    (SELECT rowid FROM chatlock_due
WHERE tenant>q.tenant ORDER BY tenant, priority LIMIT 1)))
SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at
  FROM queues q CROSS JOIN chatlock_due d ON d.rowid IN (SELECT * FROM (
  SELECT d.rowid FROM chatlock_due d JOIN chatlock_threads t ON t.tenant=d.tenant
AND t.thread_id=d.thread_id
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
AND (t.agent IN (:b_agents) OR t.status<>'idle')
AND (d.dispatched_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR d.dispatched_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)) UNION ALL SELECT * FROM (
  SELECT d.rowid FROM chatlock_due d JOIN chatlock_threads t ON t.tenant=d.tenant
AND t.thread_id=d.thread_id
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+:b_backoff_max
AND (t.quiet_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR t.quiet_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+3600000)
AND (t.agent IN (:b_agents) OR t.status<>'idle')
AND (d.dispatched_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR d.dispatched_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)))
  JOIN chatlock_threads t ON t.tenant=d.tenant
AND t.thread_id=d.thread_id;

-- due.of_each_queue_of_anyone
WITH RECURSIVE queues(tenant, priority) AS (
  SELECT * FROM (SELECT tenant, priority FROM chatlock_due ORDER BY tenant, priority LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.priority FROM queues q CROSS JOIN chatlock_due n ON n.rowid = coalesce(
    (SELECT rowid FROM chatlock_due
WHERE tenant=q.tenant
AND priority>q.priority ORDER BY priority LIMIT 1),
    (SELECT rowid FROM chatlock_due
WHERE tenant>q.tenant ORDER BY tenant, priority LIMIT 1)))
SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at
  FROM queues q CROSS JOIN chatlock_due d ON d.rowid IN (SELECT * FROM (
  SELECT d.rowid FROM chatlock_due d JOIN chatlock_threads t ON t.tenant=d.tenant
AND t.thread_id=d.thread_id
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
AND true
AND (d.dispatched_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR d.dispatched_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)) UNION ALL SELECT * FROM (
  SELECT d.rowid FROM chatlock_due d JOIN chatlock_threads t ON t.tenant=d.tenant
AND t.thread_id=d.thread_id
WHERE d.tenant=q.tenant
AND d.priority=q.priority
AND d.due_at>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+:b_backoff_max
AND (t.quiet_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR t.quiet_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+3600000)
AND true
AND (d.dispatched_until<=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR d.dispatched_until>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)+600000)
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)))
  JOIN chatlock_threads t ON t.tenant=d.tenant
AND t.thread_id=d.thread_id;

-- due.upsert
INSERT INTO chatlock_due (tenant, thread_id, due_at, priority, dispatched_until)
VALUES (:b_tenant, :b_thread, :b_due_at, :b_priority, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE
SET due_at = excluded.due_at, priority = excluded.priority, dispatched_until = 0;
