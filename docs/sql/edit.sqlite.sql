-- edit.message
SELECT chatlock_messages.seq, chatlock_messages.disposition, chatlock_messages.policy, chatlock_messages.expire_ms, chatlock_messages.superseded_by
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.message_id = :b_message_id;
