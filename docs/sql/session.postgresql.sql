-- session.delete
DELETE FROM chatlock_sessions
WHERE chatlock_sessions.tenant = :b_tenant::VARCHAR
AND chatlock_sessions.thread_id = :b_thread::VARCHAR;

-- session.insert
INSERT INTO chatlock_sessions (tenant, thread_id, name, value, token)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_name::VARCHAR, :b_value::VARCHAR, :b_token::BIGINT)
ON CONFLICT DO NOTHING;

-- session.select
SELECT chatlock_sessions.value
FROM chatlock_sessions
WHERE chatlock_sessions.tenant = :b_tenant::VARCHAR
AND chatlock_sessions.thread_id = :b_thread::VARCHAR
AND chatlock_sessions.name = :b_name::VARCHAR;
