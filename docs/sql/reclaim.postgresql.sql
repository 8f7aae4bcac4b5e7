-- reclaim.lock_stale
SELECT chatlock_threads.token
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.status = 'running'
AND chatlock_threads.expires_at < (extract(epoch FROM statement_timestamp())*1000)::bigint
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.beat = :b_beat::BIGINT FOR NO KEY UPDATE SKIP LOCKED;

-- reclaim.observe
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.token, chatlock_threads.beat, chatlock_threads.expires_at < (extract(epoch FROM statement_timestamp())*1000)::bigint AS stale, chatlock_threads.cancel_token = chatlock_threads.token
AND chatlock_threads.cancel_until < (extract(epoch FROM statement_timestamp())*1000)::bigint AS overdue
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running';
