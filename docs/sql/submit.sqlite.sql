-- submit.too_old
SELECT chatlock_messages.seq
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_above
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq DESC
 LIMIT 1 OFFSET :b_newer;
