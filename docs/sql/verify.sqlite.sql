-- verify.asked
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.awaiting IS NOT NULL
AND (NOT (EXISTS (SELECT *
FROM chatlock_turns
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation
AND chatlock_turns.question = chatlock_threads.awaiting
AND chatlock_turns.state = 'done')) OR (EXISTS (SELECT *
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.message_id = chatlock_threads.awaiting)))
 LIMIT 20 OFFSET 0;

-- verify.asked_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.awaiting IS NOT NULL
AND (NOT (EXISTS (SELECT *
FROM chatlock_turns
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation
AND chatlock_turns.question = chatlock_threads.awaiting
AND chatlock_turns.state = 'done')) OR (EXISTS (SELECT *
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.message_id = chatlock_threads.awaiting)))
 LIMIT 20 OFFSET 0;

-- verify.class
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (EXISTS (SELECT *
FROM chatlock_due
WHERE chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
AND chatlock_due.priority != chatlock_threads.priority))
 LIMIT 20 OFFSET 0;

-- verify.class_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (EXISTS (SELECT *
FROM chatlock_due
WHERE chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
AND chatlock_due.priority != chatlock_threads.priority))
 LIMIT 20 OFFSET 0;

-- verify.counts
SELECT chatlock_messages.disposition, count(*) AS count_1
FROM chatlock_messages
WHERE CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT) GROUP BY chatlock_messages.disposition;

-- verify.counts_recent
SELECT chatlock_messages.disposition, count(*) AS count_1
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_messages.tenant, chatlock_messages.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT)) GROUP BY chatlock_messages.disposition;

-- verify.due
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND NOT (EXISTS (SELECT *
FROM chatlock_due
WHERE chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
AND chatlock_due.due_at <= max(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), max(chatlock_threads.not_before, chatlock_threads.quiet_until))))
 LIMIT 20 OFFSET 0;

-- verify.due_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND NOT (EXISTS (SELECT *
FROM chatlock_due
WHERE chatlock_due.tenant = chatlock_threads.tenant
AND chatlock_due.thread_id = chatlock_threads.thread_id
AND chatlock_due.due_at <= max(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), max(chatlock_threads.not_before, chatlock_threads.quiet_until))))
 LIMIT 20 OFFSET 0;

-- verify.empty_turn
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_turns.state = 'done'
AND (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation))
AND NOT (EXISTS (SELECT *
FROM chatlock_messages
WHERE chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.disposition = 'answered'))
 LIMIT 20 OFFSET 0;

-- verify.empty_turn_recent
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_turns.tenant, chatlock_turns.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_turns.state = 'done'
AND (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation))
AND NOT (EXISTS (SELECT *
FROM chatlock_messages
WHERE chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.disposition = 'answered'))
 LIMIT 20 OFFSET 0;

-- verify.head
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status != 'deleted'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (EXISTS (SELECT *
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq = chatlock_threads.done_seq + 1
AND chatlock_messages.disposition = 'pending'))
 LIMIT 20 OFFSET 0;

-- verify.head_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status != 'deleted'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
AND NOT (EXISTS (SELECT *
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq = chatlock_threads.done_seq + 1
AND chatlock_messages.disposition = 'pending'))
 LIMIT 20 OFFSET 0;

-- verify.held
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'running'
AND chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold'
 LIMIT 20 OFFSET 0;

-- verify.held_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'running'
AND chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold'
 LIMIT 20 OFFSET 0;

-- verify.holes
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status != 'deleted'
AND chatlock_threads.holes != (SELECT count(*) AS count_1
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq > chatlock_threads.done_seq
AND chatlock_messages.disposition != 'pending')
 LIMIT 20 OFFSET 0;

-- verify.holes_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status != 'deleted'
AND chatlock_threads.holes != (SELECT count(*) AS count_1
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq > chatlock_threads.done_seq
AND chatlock_messages.disposition != 'pending')
 LIMIT 20 OFFSET 0;

-- verify.overlap
SELECT anon_1.tenant, anon_1.thread_id
FROM (SELECT chatlock_turns.tenant AS tenant, chatlock_turns.thread_id AS thread_id, chatlock_turns.from_seq AS from_seq, chatlock_turns.token AS token, lag(chatlock_turns.to_seq) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS "before", lag(chatlock_turns.token) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS token_before
FROM chatlock_turns
WHERE chatlock_turns.state IN ('done', 'gave_up')
AND (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))) AS anon_1
WHERE anon_1.from_seq < anon_1."before"
 LIMIT 20 OFFSET 0;

-- verify.overlap_recent
SELECT anon_1.tenant, anon_1.thread_id
FROM (SELECT chatlock_turns.tenant AS tenant, chatlock_turns.thread_id AS thread_id, chatlock_turns.from_seq AS from_seq, chatlock_turns.token AS token, lag(chatlock_turns.to_seq) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS "before", lag(chatlock_turns.token) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS token_before
FROM chatlock_turns
WHERE chatlock_turns.state IN ('done', 'gave_up')
AND (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_turns.tenant, chatlock_turns.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))) AS anon_1
WHERE anon_1.from_seq < anon_1."before"
 LIMIT 20 OFFSET 0;

-- verify.pending_below_done
SELECT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_messages.disposition = 'pending'
AND (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq <= chatlock_threads.done_seq))
 LIMIT 20 OFFSET 0;

-- verify.pending_below_done_recent
SELECT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_messages.tenant, chatlock_messages.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_messages.disposition = 'pending'
AND (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq <= chatlock_threads.done_seq))
 LIMIT 20 OFFSET 0;

-- verify.resolved_by_turn
SELECT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_messages.disposition IN ('answered', 'dead')
AND NOT (EXISTS (SELECT *
FROM chatlock_turns
WHERE chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.seq > chatlock_turns.from_seq
AND chatlock_messages.seq <= chatlock_turns.to_seq
AND (chatlock_turns.state = 'done'
AND chatlock_messages.disposition = 'answered' OR chatlock_turns.state = 'gave_up'
AND chatlock_messages.disposition = 'dead')))
 LIMIT 20 OFFSET 0;

-- verify.resolved_by_turn_recent
SELECT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_messages.tenant, chatlock_messages.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_messages.disposition IN ('answered', 'dead')
AND NOT (EXISTS (SELECT *
FROM chatlock_turns
WHERE chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.seq > chatlock_turns.from_seq
AND chatlock_messages.seq <= chatlock_turns.to_seq
AND (chatlock_turns.state = 'done'
AND chatlock_messages.disposition = 'answered' OR chatlock_turns.state = 'gave_up'
AND chatlock_messages.disposition = 'dead')))
 LIMIT 20 OFFSET 0;

-- verify.running_without_turn
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status = 'running'
AND NOT (EXISTS (SELECT *
FROM chatlock_turns
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation
AND chatlock_turns.token = chatlock_threads.token
AND chatlock_turns.state = 'running'))
 LIMIT 20 OFFSET 0;

-- verify.seqs
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status != 'deleted'
AND (SELECT count(*) AS count_1
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation) != chatlock_threads.last_seq
 LIMIT 20 OFFSET 0;

-- verify.seqs_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.status != 'deleted'
AND (SELECT count(*) AS count_1
FROM chatlock_messages
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation) != chatlock_threads.last_seq
 LIMIT 20 OFFSET 0;

-- verify.stop_of_no_turn
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.cancel_token IS NOT NULL
AND NOT (chatlock_threads.status = 'running'
AND chatlock_threads.cancel_token = chatlock_threads.token
AND chatlock_threads.cancel_until IS NOT NULL)
 LIMIT 20 OFFSET 0;

-- verify.stop_of_no_turn_recent
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_threads.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_threads.tenant, chatlock_threads.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_threads.cancel_token IS NOT NULL
AND NOT (chatlock_threads.status = 'running'
AND chatlock_threads.cancel_token = chatlock_threads.token
AND chatlock_threads.cancel_until IS NOT NULL)
 LIMIT 20 OFFSET 0;

-- verify.superseded_by
SELECT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_messages.superseded_by IS NOT NULL
AND (chatlock_messages.disposition != 'superseded' OR chatlock_messages.superseded_by <= chatlock_messages.seq OR (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.superseded_by > chatlock_threads.last_seq)))
 LIMIT 20 OFFSET 0;

-- verify.superseded_by_recent
SELECT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_messages.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_messages.tenant, chatlock_messages.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_messages.superseded_by IS NOT NULL
AND (chatlock_messages.disposition != 'superseded' OR chatlock_messages.superseded_by <= chatlock_messages.seq OR (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.superseded_by > chatlock_threads.last_seq)))
 LIMIT 20 OFFSET 0;

-- verify.token_above
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.token > chatlock_threads.token))
 LIMIT 20 OFFSET 0;

-- verify.token_above_recent
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_turns.tenant, chatlock_turns.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.token > chatlock_threads.token))
 LIMIT 20 OFFSET 0;

-- verify.token_order
SELECT anon_1.tenant, anon_1.thread_id
FROM (SELECT chatlock_turns.tenant AS tenant, chatlock_turns.thread_id AS thread_id, chatlock_turns.from_seq AS from_seq, chatlock_turns.token AS token, lag(chatlock_turns.to_seq) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS "before", lag(chatlock_turns.token) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS token_before
FROM chatlock_turns
WHERE chatlock_turns.state IN ('done', 'gave_up')
AND (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))) AS anon_1
WHERE anon_1.token <= anon_1.token_before
 LIMIT 20 OFFSET 0;

-- verify.token_order_recent
SELECT anon_1.tenant, anon_1.thread_id
FROM (SELECT chatlock_turns.tenant AS tenant, chatlock_turns.thread_id AS thread_id, chatlock_turns.from_seq AS from_seq, chatlock_turns.token AS token, lag(chatlock_turns.to_seq) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS "before", lag(chatlock_turns.token) OVER (PARTITION BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation ORDER BY chatlock_turns.from_seq) AS token_before
FROM chatlock_turns
WHERE chatlock_turns.state IN ('done', 'gave_up')
AND (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_turns.tenant, chatlock_turns.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))) AS anon_1
WHERE anon_1.token <= anon_1.token_before
 LIMIT 20 OFFSET 0;

-- verify.turn_without_claim
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_turns.state = 'running'
AND NOT (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation
AND chatlock_threads.token = chatlock_turns.token
AND chatlock_threads.status = 'running'))
 LIMIT 20 OFFSET 0;

-- verify.turn_without_claim_recent
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_turns.tenant, chatlock_turns.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT))
AND chatlock_turns.state = 'running'
AND NOT (EXISTS (SELECT *
FROM chatlock_threads
WHERE chatlock_turns.tenant = chatlock_threads.tenant
AND chatlock_turns.thread_id = chatlock_threads.thread_id
AND chatlock_turns.incarnation = chatlock_threads.incarnation
AND chatlock_threads.token = chatlock_turns.token
AND chatlock_threads.status = 'running'))
 LIMIT 20 OFFSET 0;

-- verify.turns
SELECT chatlock_turns.state, count(*) AS count_1
FROM chatlock_turns
WHERE CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT) GROUP BY chatlock_turns.state;

-- verify.turns_recent
SELECT chatlock_turns.state, count(*) AS count_1
FROM chatlock_turns
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR chatlock_turns.tenant = CAST(:b_tenant AS TEXT))
AND (chatlock_turns.tenant, chatlock_turns.thread_id) IN (SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since UNION SELECT recent_turn.tenant, recent_turn.thread_id
FROM chatlock_turns AS recent_turn
WHERE (CAST(:b_tenant AS TEXT) IS NULL OR recent_turn.tenant = CAST(:b_tenant AS TEXT))
AND recent_turn.state = 'running' UNION SELECT recent_due.tenant, recent_due.thread_id
FROM chatlock_due AS recent_due
WHERE CAST(:b_tenant AS TEXT) IS NULL OR recent_due.tenant = CAST(:b_tenant AS TEXT)) GROUP BY chatlock_turns.state;
