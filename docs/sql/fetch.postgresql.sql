-- fetch.advance
UPDATE chatlock_threads
SET fetched_seq=:b_fetched::BIGINT
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running'
AND chatlock_threads.fetched_seq <= :b_fetched::BIGINT
RETURNING chatlock_threads.fetched_seq;

-- fetch.batch
SELECT chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.payload, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_messages.policy, chatlock_messages.trace
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_after::BIGINT
AND chatlock_messages.seq <= :b_fetched::BIGINT
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq;
