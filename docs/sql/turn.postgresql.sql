-- turn.before
SELECT chatlock_turns.from_seq, chatlock_turns.token, chatlock_turns.state, chatlock_turns.mark
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token < :b_token::BIGINT ORDER BY chatlock_turns.token DESC
 LIMIT 1;

-- turn.insert
INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state, started_at)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_incarnation::BIGINT, :b_token::BIGINT, :b_claim_id::VARCHAR, :b_owner::VARCHAR, :b_agent::VARCHAR, :b_from_seq::BIGINT, 'running', :b_now::BIGINT);

-- turn.mark
UPDATE chatlock_turns
SET mark=:b_mark::VARCHAR
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT
AND chatlock_turns.state = 'running'
RETURNING chatlock_turns.token;

-- turn.report_late
UPDATE chatlock_turns
SET late_ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT
AND chatlock_turns.state = 'reclaimed'
AND chatlock_turns.late_ended_at IS NULL
RETURNING chatlock_turns.token;

-- turn.state
SELECT chatlock_turns.state, chatlock_turns.claim_id, chatlock_turns.error
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT;
