-- edit.message
SELECT chatlock_messages.seq, chatlock_messages.disposition, chatlock_messages.policy, chatlock_messages.expire_ms, chatlock_messages.superseded_by
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.message_id = :b_message_id::VARCHAR;
