-- reclaim.lock_stale
SELECT chatlock_threads.token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.status = 'running'
AND chatlock_threads.expires_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
AND chatlock_threads.token = :b_token
AND chatlock_threads.beat = :b_beat;

-- reclaim.observe
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.token, chatlock_threads.beat, chatlock_threads.expires_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS stale, chatlock_threads.cancel_token = chatlock_threads.token
AND chatlock_threads.cancel_until < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS overdue
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running';
