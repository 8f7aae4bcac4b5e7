-- messages.first_pending
SELECT chatlock_messages.seq
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > :b_done::BIGINT
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq
 LIMIT 1;

-- messages.insert
INSERT INTO chatlock_messages (tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, disposition, policy, received_at, expire_ms, redrive_of, trace)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_incarnation::BIGINT, :b_seq::BIGINT, :b_message_id::VARCHAR, :b_payload::VARCHAR, :b_payload_hash::VARCHAR, 'pending', :b_policy::VARCHAR, :b_now::BIGINT, :b_expire_ms::BIGINT, :b_redrive_of::VARCHAR, :b_trace::VARCHAR);

-- messages.known
SELECT chatlock_messages.seq, chatlock_messages.disposition, chatlock_messages.payload_hash
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.message_id = :b_message_id::VARCHAR;

-- messages.look
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.disposition, chatlock_threads.incarnation AS life, chatlock_threads.status, chatlock_threads.token, chatlock_threads.done_seq, chatlock_threads.holes, NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (chatlock_threads.not_before <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_threads.not_before > (extract(epoch FROM statement_timestamp())*1000)::bigint + :b_backoff_max::BIGINT)
AND (chatlock_threads.quiet_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_threads.quiet_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 3600000) AS may_start
FROM chatlock_messages JOIN chatlock_threads ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
WHERE (chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq) IN (:b_waited);
