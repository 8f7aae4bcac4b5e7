-- hot.finish
SELECT last_seq, priority, quiet_until, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), expires_at<CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AND expires_at<window_ends_at
  FROM chatlock_threads WHERE tenant=:tenant AND thread_id=:thread AND incarnation=:incarnation AND token=:token AND status='running'
   AND done_seq=:from_seq AND done_seq<:upto AND :upto<=fetched_seq AND holes=0 AND cancel_token IS NULL;
UPDATE chatlock_messages SET disposition='answered', turn_token=:token
 WHERE tenant=:tenant AND thread_id=:thread AND incarnation=:incarnation AND seq>:from_seq AND seq<=:upto AND disposition='pending'
RETURNING seq;
UPDATE chatlock_turns SET state='done', to_seq=:upto, reply=:reply, ended_at=:now, error=CASE WHEN :silent THEN 'silent' ELSE error END
 WHERE tenant=:tenant AND thread_id=:thread AND incarnation=:incarnation AND token=:token AND state='running' RETURNING token;
UPDATE chatlock_threads SET status='idle', done_seq=:upto, attempts=0, stalls=0, not_before=0, interrupts=0, claim_id=NULL,
       owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL
 WHERE tenant=:tenant AND thread_id=:thread AND token=:token;
INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until) VALUES(:tenant, :thread, :due_at, :priority, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0;

-- hot.init
INSERT INTO chatlock_threads(tenant, thread_id, agent, token, created_at)
VALUES(:tenant, :thread, :agent, COALESCE((SELECT value FROM chatlock_meta WHERE name='epoch'), 0) * 1000000, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER));

-- hot.submit
SELECT incarnation, status, token, last_seq, done_seq, holes, attempts, stalls, not_before, quiet_until, awaiting, priority, claimed_at,
       CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
  FROM chatlock_threads WHERE tenant=:tenant AND thread_id=:thread;
INSERT INTO chatlock_messages(tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, policy, trace, received_at)
VALUES(:tenant, :thread, :incarnation, :seq, :message_id, :payload, :payload_hash, :policy, :trace, :now)
ON CONFLICT (tenant, message_id, thread_id, incarnation) DO NOTHING RETURNING seq;
UPDATE chatlock_threads SET last_seq=:seq, agent=:agent, priority=:priority, status='running', token=token+1, fetched_seq=:seq, claim_id=:claim_id,
       owner=:owner, beat=0, lease_ms=:lease, claimed_at=:now, window_ends_at=:now+:window, expires_at=:now+min(:lease,:window)
 WHERE tenant=:tenant AND thread_id=:thread AND status='idle' AND token=:token;
INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state, started_at)
VALUES(:tenant, :thread, :incarnation, :token+1, :claim_id, :owner, :agent, :done_seq, 'running', :now);
UPDATE chatlock_threads SET last_seq=:seq, agent=:agent, priority=:priority WHERE tenant=:tenant AND thread_id=:thread;
INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until) VALUES(:tenant, :thread, :due_at, :priority, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0;
SELECT sum(total_ms)/sum(runs) FROM chatlock_windows WHERE agent=:agent AND day>CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)/86400000-7 AND total_ms>0;
