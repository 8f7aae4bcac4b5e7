-- heartbeat.beat
WITH locked AS
(SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.token AS token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running' FOR NO KEY UPDATE SKIP LOCKED)
 UPDATE chatlock_threads
SET expires_at=least((extract(epoch FROM clock_timestamp())*1000)::bigint + chatlock_threads.lease_ms, chatlock_threads.window_ends_at), beat=(chatlock_threads.beat + 1) FROM locked
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.tenant = locked.tenant
AND chatlock_threads.thread_id = locked.thread_id
AND chatlock_threads.token = locked.token
AND (extract(epoch FROM clock_timestamp())*1000)::bigint < chatlock_threads.window_ends_at
AND (extract(epoch FROM clock_timestamp())*1000)::bigint <= chatlock_threads.expires_at
RETURNING chatlock_threads.cancel_token, (SELECT max(chatlock_messages.seq) AS max_1
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > chatlock_threads.fetched_seq
AND chatlock_messages.disposition = 'pending'
AND chatlock_messages.policy = 'steer') AS steered;

-- heartbeat.beat_late
WITH locked AS
(SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.token AS token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'running' FOR NO KEY UPDATE SKIP LOCKED)
 UPDATE chatlock_threads
SET expires_at=least((extract(epoch FROM clock_timestamp())*1000)::bigint + chatlock_threads.lease_ms, chatlock_threads.window_ends_at), beat=(chatlock_threads.beat + 1) FROM locked
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.tenant = locked.tenant
AND chatlock_threads.thread_id = locked.thread_id
AND chatlock_threads.token = locked.token
AND (extract(epoch FROM clock_timestamp())*1000)::bigint < chatlock_threads.window_ends_at
RETURNING chatlock_threads.cancel_token, (SELECT max(chatlock_messages.seq) AS max_1
FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq > chatlock_threads.fetched_seq
AND chatlock_messages.disposition = 'pending'
AND chatlock_messages.policy = 'steer') AS steered;

-- heartbeat.note_silence
UPDATE chatlock_turns
SET error='silent'
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT
AND chatlock_turns.state = 'running'
RETURNING chatlock_turns.token;

-- heartbeat.why_not
SELECT chatlock_turns.state, chatlock_threads.window_ends_at > (extract(epoch FROM statement_timestamp())*1000)::bigint AS within_window, chatlock_threads.expires_at < (extract(epoch FROM statement_timestamp())*1000)::bigint AS silent
FROM chatlock_turns LEFT OUTER JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.incarnation = chatlock_turns.incarnation
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.token = :b_token::BIGINT;
