-- audit.insert
INSERT INTO chatlock_audit (at, tenant, thread_id, incarnation, token, action, actor, reason)
VALUES (CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), :b_tenant, :b_thread, :b_incarnation, :b_token, :b_action, :b_actor, :b_reason);
