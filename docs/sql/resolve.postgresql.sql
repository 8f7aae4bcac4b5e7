-- resolve.cancel
UPDATE chatlock_messages
SET disposition='cancelled'
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq = :b_seq::BIGINT
AND chatlock_messages.disposition = 'pending'
RETURNING chatlock_messages.seq;

-- resolve.cancel_range
UPDATE chatlock_messages
SET disposition='cancelled'
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_above::BIGINT
AND chatlock_messages.seq <= :b_upto::BIGINT
AND chatlock_messages.disposition = 'pending'
RETURNING chatlock_messages.seq;

-- resolve.expire
UPDATE chatlock_messages
SET disposition='expired'
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_above::BIGINT
AND chatlock_messages.expire_ms < :b_now - greatest(chatlock_messages.received_at, :b_last_end)
AND chatlock_messages.disposition = 'pending'
RETURNING chatlock_messages.seq;

-- resolve.last_end
SELECT chatlock_turns.ended_at
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.ended_at IS NOT NULL ORDER BY chatlock_turns.token DESC
 LIMIT 1;

-- resolve.overdue
SELECT chatlock_messages.seq
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_above::BIGINT
AND chatlock_messages.disposition = 'pending'
AND chatlock_messages.expire_ms < :b_now - chatlock_messages.received_at ORDER BY chatlock_messages.seq
 LIMIT 1;

-- resolve.supersede
UPDATE chatlock_messages
SET disposition='superseded', superseded_by=:b_by::BIGINT
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_above::BIGINT
AND chatlock_messages.seq <= :b_upto::BIGINT
AND chatlock_messages.disposition = 'pending'
RETURNING chatlock_messages.seq;

-- resolve.thread
UPDATE chatlock_threads
SET fetched_seq=CASE WHEN (chatlock_threads.fetched_seq < :b_done::BIGINT) THEN :b_done ELSE chatlock_threads.fetched_seq END, done_seq=:b_done::BIGINT, holes=:b_new_holes::BIGINT, attempts=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.attempts END, stalls=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.stalls END, not_before=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.not_before END, interrupts=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.interrupts END
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
RETURNING chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.fetched_seq, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before;
