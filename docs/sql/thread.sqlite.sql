-- thread.advance_last
UPDATE chatlock_threads
SET agent=:b_agent, last_seq=:b_seq, priority=:b_priority
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.last_seq = :b_seq - 1
RETURNING last_seq;

-- thread.close_question
UPDATE chatlock_threads
SET awaiting=NULL, awaiting_rule=NULL
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.awaiting = :b_question
RETURNING token;

-- thread.init
INSERT INTO chatlock_threads (tenant, thread_id, agent, token, created_at)
VALUES (:b_tenant, :b_thread, :b_agent, (coalesce((SELECT chatlock_meta.value
FROM chatlock_meta
WHERE chatlock_meta.name = 'epoch'), 0) * 1000000), CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER))
ON CONFLICT DO NOTHING;

-- thread.lock
WITH locked AS
(SELECT chatlock_threads.incarnation AS incarnation, chatlock_threads.agent AS agent, chatlock_threads.status AS status, chatlock_threads.token AS token, chatlock_threads.claim_id AS claim_id, chatlock_threads.owner AS owner, chatlock_threads.claimed_at AS claimed_at, chatlock_threads.expires_at AS expires_at, chatlock_threads.window_ends_at AS window_ends_at, chatlock_threads.beat AS beat, chatlock_threads.last_seq AS last_seq, chatlock_threads.fetched_seq AS fetched_seq, chatlock_threads.done_seq AS done_seq, chatlock_threads.holes AS holes, chatlock_threads.attempts AS attempts, chatlock_threads.stalls AS stalls, chatlock_threads.not_before AS not_before, chatlock_threads.quiet_until AS quiet_until, chatlock_threads.awaiting AS awaiting, chatlock_threads.awaiting_rule AS awaiting_rule, chatlock_threads.priority AS priority, chatlock_threads.cancel_token AS cancel_token, chatlock_threads.cancel_until AS cancel_until, chatlock_threads.cancel_queued AS cancel_queued, chatlock_threads.cancel_upto AS cancel_upto, chatlock_threads.interrupts AS interrupts
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread)
 SELECT locked.incarnation, locked.agent, locked.status, locked.token, locked.claim_id, locked.owner, locked.claimed_at, locked.expires_at, locked.window_ends_at, locked.beat, locked.last_seq, locked.fetched_seq, locked.done_seq, locked.holes, locked.attempts, locked.stalls, locked.not_before, locked.quiet_until, locked.awaiting, locked.awaiting_rule, locked.priority, locked.cancel_token, locked.cancel_until, locked.cancel_queued, locked.cancel_upto, locked.interrupts, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS anon_1
FROM locked;

-- thread.lock_or_skip
WITH locked AS
(SELECT chatlock_threads.incarnation AS incarnation, chatlock_threads.agent AS agent, chatlock_threads.status AS status, chatlock_threads.token AS token, chatlock_threads.claim_id AS claim_id, chatlock_threads.owner AS owner, chatlock_threads.claimed_at AS claimed_at, chatlock_threads.expires_at AS expires_at, chatlock_threads.window_ends_at AS window_ends_at, chatlock_threads.beat AS beat, chatlock_threads.last_seq AS last_seq, chatlock_threads.fetched_seq AS fetched_seq, chatlock_threads.done_seq AS done_seq, chatlock_threads.holes AS holes, chatlock_threads.attempts AS attempts, chatlock_threads.stalls AS stalls, chatlock_threads.not_before AS not_before, chatlock_threads.quiet_until AS quiet_until, chatlock_threads.awaiting AS awaiting, chatlock_threads.awaiting_rule AS awaiting_rule, chatlock_threads.priority AS priority, chatlock_threads.cancel_token AS cancel_token, chatlock_threads.cancel_until AS cancel_until, chatlock_threads.cancel_queued AS cancel_queued, chatlock_threads.cancel_upto AS cancel_upto, chatlock_threads.interrupts AS interrupts
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread)
 SELECT locked.incarnation, locked.agent, locked.status, locked.token, locked.claim_id, locked.owner, locked.claimed_at, locked.expires_at, locked.window_ends_at, locked.beat, locked.last_seq, locked.fetched_seq, locked.done_seq, locked.holes, locked.attempts, locked.stalls, locked.not_before, locked.quiet_until, locked.awaiting, locked.awaiting_rule, locked.priority, locked.cancel_token, locked.cancel_until, locked.cancel_queued, locked.cancel_upto, locked.interrupts, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS anon_1
FROM locked;

-- thread.recreate
UPDATE chatlock_threads
SET incarnation=(chatlock_threads.incarnation + 1), status='idle', token=(chatlock_threads.token + 1), last_seq=0, fetched_seq=0, done_seq=0, holes=0, attempts=0, stalls=0, not_before=0, quiet_until=0, awaiting=NULL, created_at=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), interrupts=0, awaiting_rule=NULL
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.status = 'deleted'
AND chatlock_threads.incarnation = :b_incarnation;
