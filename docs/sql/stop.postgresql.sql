-- stop.ask
UPDATE chatlock_threads
SET cancel_token=:b_token::BIGINT, cancel_until=:b_until::BIGINT, cancel_queued=:b_queued::VARCHAR, cancel_upto=:b_upto::BIGINT, interrupts=(chatlock_threads.interrupts + :b_spent::INTEGER)
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running'
RETURNING chatlock_threads.token;

-- stop.lock_overdue
SELECT chatlock_threads.token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.status = 'running'
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.cancel_token = :b_token::BIGINT
AND chatlock_threads.cancel_until < (extract(epoch FROM statement_timestamp())*1000)::bigint FOR NO KEY UPDATE SKIP LOCKED;

-- stop.rolled_back
SELECT chatlock_turns.token
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token < :b_token::BIGINT
AND chatlock_turns.state = 'released'
AND chatlock_turns.error IS NOT DISTINCT FROM 'rolled back'
AND chatlock_turns.token > coalesce((SELECT max(done_turns.token) AS max_1
FROM chatlock_turns AS done_turns
WHERE done_turns.tenant = :b_tenant::VARCHAR
AND done_turns.thread_id = :b_thread::VARCHAR
AND done_turns.incarnation = :b_incarnation::BIGINT
AND done_turns.token < :b_token::BIGINT
AND done_turns.state = 'done'), 0) ORDER BY chatlock_turns.token;

-- stop.waiting
SELECT chatlock_messages.seq, chatlock_messages.message_id
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_above::BIGINT
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq;
