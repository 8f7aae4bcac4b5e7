-- fetch.advance
UPDATE chatlock_threads
SET fetched_seq=:b_fetched
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running'
AND chatlock_threads.fetched_seq <= :b_fetched
RETURNING fetched_seq;

-- fetch.batch
SELECT chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.payload, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_messages.policy, chatlock_messages.trace
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_after
AND chatlock_messages.seq <= :b_fetched
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq;
