-- report.last_turns
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_turns.state, chatlock_turns.error
FROM chatlock_threads JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation
AND chatlock_turns.token = (SELECT max(ended.token) AS max_1
FROM chatlock_turns AS ended
WHERE ended.tenant = chatlock_threads.tenant
AND ended.thread_id = chatlock_threads.thread_id
AND ended.incarnation = chatlock_threads.incarnation
AND ended.state != 'running') JOIN ((:b_waited)) AS waited ON chatlock_threads.tenant = waited.column1
AND chatlock_threads.thread_id = waited.column2;

-- report.oldest_running
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_turns.tenant
AND chatlock_due.thread_id = chatlock_turns.thread_id
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running'
AND chatlock_turns.tenant = :b_tenant ORDER BY chatlock_threads.claimed_at
 LIMIT :b_limit OFFSET 0;

-- report.oldest_running_of_all
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_turns.tenant
AND chatlock_due.thread_id = chatlock_turns.thread_id
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running' ORDER BY chatlock_threads.claimed_at
 LIMIT :b_limit OFFSET 0;

-- report.overdue
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE chatlock_due.tenant = :b_tenant
AND chatlock_due.due_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_older
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_due.due_at
 LIMIT :b_limit OFFSET 0;

-- report.overdue_of_all
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE chatlock_due.due_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_older
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_due.due_at
 LIMIT :b_limit OFFSET 0;

-- report.parked_by
SELECT chatlock_audit.actor, chatlock_audit.reason
FROM chatlock_audit
WHERE chatlock_audit.tenant = :b_tenant
AND chatlock_audit.thread_id = :b_thread
AND chatlock_audit.action = 'park'
AND chatlock_audit.token >= :b_token - 1 ORDER BY chatlock_audit.audit_id DESC
 LIMIT 1 OFFSET 0;

-- report.running
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_turns.tenant
AND chatlock_due.thread_id = chatlock_turns.thread_id
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running'
AND chatlock_turns.tenant = :b_tenant
AND (chatlock_turns.tenant, chatlock_turns.thread_id) > (:b_after_tenant, :b_after_thread)
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_turns.tenant, chatlock_turns.thread_id
 LIMIT :b_limit OFFSET 0;

-- report.running_of_all
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_turns.tenant
AND chatlock_due.thread_id = chatlock_turns.thread_id
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running'
AND (chatlock_turns.tenant, chatlock_turns.thread_id) > (:b_after_tenant, :b_after_thread)
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_turns.tenant, chatlock_turns.thread_id
 LIMIT :b_limit OFFSET 0;

-- report.running_of_each
SELECT chatlock_turns.tenant, chatlock_turns.agent, count(*) AS count_1
FROM chatlock_turns
WHERE chatlock_turns.state = 'running' GROUP BY chatlock_turns.tenant, chatlock_turns.agent;

-- report.service
SELECT (SELECT min(chatlock_due.due_at) AS min_1
FROM chatlock_due) AS anon_1, (SELECT chatlock_meta.value
FROM chatlock_meta
WHERE chatlock_meta.name = 'windows_through') AS anon_2;

-- report.stale
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_turns.tenant
AND chatlock_due.thread_id = chatlock_turns.thread_id
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running'
AND chatlock_turns.tenant = :b_tenant
AND chatlock_threads.expires_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_older
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_threads.expires_at
 LIMIT :b_limit OFFSET 0;

-- report.stale_of_all
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_turns.tenant
AND chatlock_due.thread_id = chatlock_turns.thread_id
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running'
AND chatlock_threads.expires_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_older
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_threads.expires_at
 LIMIT :b_limit OFFSET 0;

-- report.thread
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_threads LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread;

-- report.threads
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_threads LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
WHERE chatlock_threads.tenant = :b_tenant
AND (chatlock_threads.tenant, chatlock_threads.thread_id) > (:b_after_tenant, :b_after_thread)
AND (CAST(:b_status AS TEXT) IS NULL OR chatlock_threads.status = CAST(:b_status AS TEXT))
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit OFFSET 0;

-- report.threads_of_all
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.awaiting, chatlock_threads.awaiting_rule, chatlock_threads.created_at, chatlock_due.due_at, chatlock_due.dispatched_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS now
FROM chatlock_threads LEFT OUTER JOIN chatlock_due ON chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
WHERE (chatlock_threads.tenant, chatlock_threads.thread_id) > (:b_after_tenant, :b_after_thread)
AND (CAST(:b_status AS TEXT) IS NULL OR chatlock_threads.status = CAST(:b_status AS TEXT))
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_threads.agent = CAST(:b_agent AS TEXT)) ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit OFFSET 0;
