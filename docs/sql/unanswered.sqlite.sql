-- unanswered.head_dead
UPDATE chatlock_messages
SET disposition='dead', turn_token=:b_token
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq = :b_head
AND chatlock_messages.disposition = 'pending'
RETURNING seq;

-- unanswered.thread
UPDATE chatlock_threads
SET status=:b_new_status, token=(chatlock_threads.token + :b_bump), claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL, fetched_seq=CASE WHEN (chatlock_threads.fetched_seq < :b_done) THEN :b_done ELSE chatlock_threads.fetched_seq END, done_seq=:b_done, holes=:b_new_holes, attempts=:b_new_attempts, stalls=:b_new_stalls, not_before=CASE WHEN (:b_delay > 0) THEN CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_delay ELSE 0 END, cancel_token=NULL, cancel_until=NULL, cancel_queued=NULL, cancel_upto=NULL, interrupts=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.interrupts END
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running'
RETURNING not_before;

-- unanswered.turn
UPDATE chatlock_turns
SET to_seq=:b_to_seq, state=:b_new_state, error=:b_error, ended_at=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token
AND chatlock_turns.state = 'running'
RETURNING token;
