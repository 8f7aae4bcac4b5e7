-- audit.insert
INSERT INTO chatlock_audit (at, tenant, thread_id, incarnation, token, action, actor, reason)
VALUES ((extract(epoch FROM clock_timestamp())*1000)::bigint, :b_tenant::VARCHAR, :b_thread::VARCHAR, :b_incarnation::BIGINT, :b_token::BIGINT, :b_action::VARCHAR, :b_actor::VARCHAR, :b_reason::VARCHAR)
RETURNING chatlock_audit.audit_id;
