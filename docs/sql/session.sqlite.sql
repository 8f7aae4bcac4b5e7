-- session.delete
DELETE FROM chatlock_sessions
WHERE chatlock_sessions.tenant = :b_tenant
AND chatlock_sessions.thread_id = :b_thread;

-- session.insert
INSERT INTO chatlock_sessions (tenant, thread_id, name, value, token)
VALUES (:b_tenant, :b_thread, :b_name, :b_value, :b_token)
ON CONFLICT DO NOTHING;

-- session.select
SELECT chatlock_sessions.value
FROM chatlock_sessions
WHERE chatlock_sessions.tenant = :b_tenant
AND chatlock_sessions.thread_id = :b_thread
AND chatlock_sessions.name = :b_name;
