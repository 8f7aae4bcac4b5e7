-- stop.ask
UPDATE chatlock_threads
SET cancel_token=:b_token, cancel_until=:b_until, cancel_queued=:b_queued, cancel_upto=:b_upto, interrupts=(chatlock_threads.interrupts + :b_spent)
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running'
RETURNING token;

-- stop.lock_overdue
SELECT chatlock_threads.token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.status = 'running'
AND chatlock_threads.token = :b_token
AND chatlock_threads.cancel_token = :b_token
AND chatlock_threads.cancel_until < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER);

-- stop.rolled_back
SELECT chatlock_turns.token
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token < :b_token
AND chatlock_turns.state = 'released'
AND chatlock_turns.error IS 'rolled back'
AND chatlock_turns.token > coalesce((SELECT max(done_turns.token) AS max_1
FROM chatlock_turns AS done_turns
WHERE done_turns.tenant = :b_tenant
AND done_turns.thread_id = :b_thread
AND done_turns.incarnation = :b_incarnation
AND done_turns.token < :b_token
AND done_turns.state = 'done'), 0) ORDER BY chatlock_turns.token;

-- stop.waiting
SELECT chatlock_messages.seq, chatlock_messages.message_id
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_above
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq;
