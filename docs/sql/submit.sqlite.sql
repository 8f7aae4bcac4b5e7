-- submit.oldest
SELECT chatlock_messages.received_at
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_above
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq
 LIMIT 1 OFFSET 0;

-- submit.quiet
UPDATE chatlock_threads
SET quiet_until=:b_until
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
RETURNING quiet_until;

-- submit.too_old
SELECT chatlock_messages.seq
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_above
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq DESC
 LIMIT 1 OFFSET :b_newer;

-- submit.touch
UPDATE chatlock_threads
SET token=chatlock_threads.token
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.token < 0;
