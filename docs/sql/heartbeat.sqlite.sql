-- heartbeat.beat
WITH locked AS
(SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.token AS token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running')
 UPDATE chatlock_threads
SET expires_at=min(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + chatlock_threads.lease_ms, chatlock_threads.window_ends_at), beat=(chatlock_threads.beat + 1) FROM locked
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.tenant = locked.tenant
AND chatlock_threads.thread_id = locked.thread_id
AND chatlock_threads.token = locked.token
AND CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) < chatlock_threads.window_ends_at
AND CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) <= chatlock_threads.expires_at
RETURNING cancel_token, (SELECT max(chatlock_messages.seq) AS max_1
FROM chatlock_messages
WHERE tenant = :b_tenant
AND thread_id = :b_thread
AND incarnation = :b_incarnation
AND seq > fetched_seq
AND disposition = 'pending'
AND policy = 'steer') AS steered;

-- heartbeat.beat_late
WITH locked AS
(SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.token AS token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'running')
 UPDATE chatlock_threads
SET expires_at=min(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + chatlock_threads.lease_ms, chatlock_threads.window_ends_at), beat=(chatlock_threads.beat + 1) FROM locked
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.tenant = locked.tenant
AND chatlock_threads.thread_id = locked.thread_id
AND chatlock_threads.token = locked.token
AND CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) < chatlock_threads.window_ends_at
RETURNING cancel_token, (SELECT max(chatlock_messages.seq) AS max_1
FROM chatlock_messages
WHERE tenant = :b_tenant
AND thread_id = :b_thread
AND incarnation = :b_incarnation
AND seq > fetched_seq
AND disposition = 'pending'
AND policy = 'steer') AS steered;

-- heartbeat.note_silence
UPDATE chatlock_turns
SET error='silent'
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token
AND chatlock_turns.state = 'running'
RETURNING token;

-- heartbeat.why_not
SELECT chatlock_turns.state, chatlock_threads.window_ends_at > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS within_window, chatlock_threads.expires_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS silent
FROM chatlock_turns LEFT OUTER JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.incarnation = chatlock_turns.incarnation
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.token = :b_token;
