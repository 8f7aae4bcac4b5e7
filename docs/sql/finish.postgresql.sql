-- finish.answer
UPDATE chatlock_messages
SET disposition='answered', turn_token=:b_token::BIGINT
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_from_seq::BIGINT
AND chatlock_messages.seq <= :b_upto::BIGINT
AND chatlock_messages.disposition = 'pending'
RETURNING chatlock_messages.seq;

-- finish.found
SELECT chatlock_turns.reply, chatlock_turns.to_seq, chatlock_turns.question
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT
AND chatlock_turns.claim_id = :b_claim_id::VARCHAR
AND chatlock_turns.state = 'done';

-- finish.thread
UPDATE chatlock_threads
SET status=:b_new_status::VARCHAR, claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL, fetched_seq=CASE WHEN (chatlock_threads.fetched_seq < :b_done::BIGINT) THEN :b_done ELSE chatlock_threads.fetched_seq END, done_seq=:b_done::BIGINT, holes=:b_new_holes::BIGINT, attempts=0, stalls=0, not_before=0, cancel_token=NULL, awaiting=coalesce(CAST(:b_question AS TEXT), chatlock_threads.awaiting), cancel_until=NULL, cancel_queued=NULL, cancel_upto=NULL, interrupts=0, awaiting_rule=coalesce(CAST(:b_rule AS TEXT), chatlock_threads.awaiting_rule)
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running'
RETURNING chatlock_threads.last_seq;

-- finish.turn
UPDATE chatlock_turns
SET from_seq=:b_from_seq::BIGINT, to_seq=:b_upto::BIGINT, state='done', reply=:b_reply::VARCHAR, error=CASE WHEN (:b_silent = 1) THEN 'silent' ELSE chatlock_turns.error END, ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint, question=:b_question::VARCHAR
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT
AND chatlock_turns.state = 'running'
RETURNING chatlock_turns.token;
