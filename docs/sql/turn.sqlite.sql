-- turn.before
SELECT chatlock_turns.from_seq, chatlock_turns.token, chatlock_turns.state, chatlock_turns.mark
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token < :b_token ORDER BY chatlock_turns.token DESC
 LIMIT 1 OFFSET 0;

-- turn.insert
INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state, started_at)
VALUES (:b_tenant, :b_thread, :b_incarnation, :b_token, :b_claim_id, :b_owner, :b_agent, :b_from_seq, 'running', :b_now);

-- turn.mark
UPDATE chatlock_turns
SET mark=:b_mark
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token
AND chatlock_turns.state = 'running'
RETURNING token;

-- turn.report_late
UPDATE chatlock_turns
SET late_ended_at=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token
AND chatlock_turns.state = 'reclaimed'
AND chatlock_turns.late_ended_at IS NULL
RETURNING token;

-- turn.state
SELECT chatlock_turns.state, chatlock_turns.claim_id, chatlock_turns.error
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token;
