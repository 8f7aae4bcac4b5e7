-- message.in_turn
SELECT chatlock_threads.status, chatlock_messages.message_id
FROM chatlock_threads LEFT OUTER JOIN chatlock_messages ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.seq = chatlock_threads.done_seq + 1
AND chatlock_threads.status = 'running'
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR;

-- message.locate
SELECT chatlock_messages.incarnation, chatlock_messages.seq
FROM chatlock_messages JOIN chatlock_threads ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.message_id = :b_message_id::VARCHAR;

-- message.outcome
SELECT chatlock_threads.status, chatlock_threads.token, chatlock_threads.fetched_seq, chatlock_threads.incarnation, (extract(epoch FROM statement_timestamp())*1000)::bigint - chatlock_threads.claimed_at AS since_ms, chatlock_messages.seq, chatlock_messages.disposition, chatlock_messages.turn_token, chatlock_messages.superseded_by, chatlock_turns.reply, chatlock_turns.question, chatlock_turns.error, (SELECT count(*) AS count_1
FROM chatlock_messages AS ahead
WHERE ahead.tenant = chatlock_messages.tenant
AND ahead.thread_id = chatlock_messages.thread_id
AND ahead.incarnation = chatlock_messages.incarnation
AND ahead.seq > chatlock_threads.done_seq
AND ahead.seq < chatlock_messages.seq
AND ahead.disposition = 'pending') AS position, (SELECT sum(chatlock_windows.total_ms) / CAST(sum(chatlock_windows.runs) AS NUMERIC) AS anon_1
FROM chatlock_windows
WHERE chatlock_windows.agent = chatlock_threads.agent
AND chatlock_windows.day > (extract(epoch FROM statement_timestamp())*1000)::bigint / CAST(86400000 AS NUMERIC) - 7
AND chatlock_windows.total_ms > 0) AS typical_ms
FROM chatlock_threads LEFT OUTER JOIN chatlock_messages ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
AND chatlock_messages.message_id = :b_message_id::VARCHAR LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR;
