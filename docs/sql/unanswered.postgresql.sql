-- unanswered.head_dead
UPDATE chatlock_messages
SET disposition='dead', turn_token=:b_token::BIGINT
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq = :b_head::BIGINT
AND chatlock_messages.disposition = 'pending'
RETURNING chatlock_messages.seq;

-- unanswered.thread
UPDATE chatlock_threads
SET status=:b_new_status::VARCHAR, token=(chatlock_threads.token + :b_bump::BIGINT), claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL, fetched_seq=CASE WHEN (chatlock_threads.fetched_seq < :b_done::BIGINT) THEN :b_done ELSE chatlock_threads.fetched_seq END, done_seq=:b_done::BIGINT, holes=:b_new_holes::BIGINT, attempts=:b_new_attempts::INTEGER, stalls=:b_new_stalls::INTEGER, not_before=CASE WHEN (:b_delay > 0) THEN (extract(epoch FROM clock_timestamp())*1000)::bigint + :b_delay::BIGINT ELSE 0 END, cancel_token=NULL, cancel_until=NULL, cancel_queued=NULL, cancel_upto=NULL, interrupts=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.interrupts END
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running'
RETURNING chatlock_threads.not_before;

-- unanswered.turn
UPDATE chatlock_turns
SET to_seq=:b_to_seq::BIGINT, state=:b_new_state::VARCHAR, error=:b_error::VARCHAR, ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT
AND chatlock_turns.state = 'running'
RETURNING chatlock_turns.token;
