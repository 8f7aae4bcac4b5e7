-- redrive.dead
SELECT chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.disposition, chatlock_messages.payload, chatlock_messages.payload_hash, chatlock_messages.policy, chatlock_threads.agent
FROM chatlock_messages JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_messages.tenant
AND chatlock_threads.thread_id = chatlock_messages.thread_id
AND chatlock_threads.incarnation = chatlock_messages.incarnation
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.message_id = :b_message_id;
