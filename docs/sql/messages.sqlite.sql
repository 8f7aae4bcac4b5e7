-- messages.first_pending
SELECT chatlock_messages.seq
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq > :b_done
AND chatlock_messages.disposition = 'pending' ORDER BY chatlock_messages.seq
 LIMIT 1 OFFSET 0;

-- messages.insert
INSERT INTO chatlock_messages (tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, disposition, policy, received_at, expire_ms, redrive_of, trace)
VALUES (:b_tenant, :b_thread, :b_incarnation, :b_seq, :b_message_id, :b_payload, :b_payload_hash, 'pending', :b_policy, :b_now, :b_expire_ms, :b_redrive_of, :b_trace);

-- messages.known
SELECT chatlock_messages.seq, chatlock_messages.disposition, chatlock_messages.payload_hash
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.message_id = :b_message_id;

-- messages.look
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.disposition, chatlock_threads.incarnation AS life, chatlock_threads.status, chatlock_threads.token, chatlock_threads.done_seq, chatlock_threads.holes, NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (chatlock_threads.not_before <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_threads.not_before > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_backoff_max)
AND (chatlock_threads.quiet_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_threads.quiet_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 3600000) AS may_start
FROM chatlock_messages JOIN chatlock_threads ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id JOIN ((:b_waited)) AS waited ON chatlock_messages.tenant = waited.column1
AND chatlock_messages.thread_id = waited.column2
AND chatlock_messages.incarnation = waited.column3
AND chatlock_messages.seq = waited.column4;
