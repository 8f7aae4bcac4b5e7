-- finish.answer
UPDATE chatlock_messages
SET disposition='answered', turn_token=:b_token
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_from_seq
AND chatlock_messages.seq <= :b_upto
AND chatlock_messages.disposition = 'pending'
RETURNING seq;

-- finish.found
SELECT chatlock_turns.reply, chatlock_turns.to_seq, chatlock_turns.question
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token
AND chatlock_turns.claim_id = :b_claim_id
AND chatlock_turns.state = 'done';

-- finish.thread
UPDATE chatlock_threads
SET status=:b_new_status, claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL, fetched_seq=CASE WHEN (chatlock_threads.fetched_seq < :b_done) THEN :b_done ELSE chatlock_threads.fetched_seq END, done_seq=:b_done, holes=:b_new_holes, attempts=0, stalls=0, not_before=0, cancel_token=NULL, awaiting=coalesce(CAST(:b_question AS TEXT), chatlock_threads.awaiting), cancel_until=NULL, cancel_queued=NULL, cancel_upto=NULL, interrupts=0, awaiting_rule=coalesce(CAST(:b_rule AS TEXT), chatlock_threads.awaiting_rule)
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running'
RETURNING last_seq;

-- finish.turn
UPDATE chatlock_turns
SET from_seq=:b_from_seq, to_seq=:b_upto, state='done', reply=:b_reply, error=CASE WHEN (:b_silent = 1) THEN 'silent' ELSE chatlock_turns.error END, ended_at=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), question=:b_question
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token
AND chatlock_turns.state = 'running'
RETURNING token;
