-- hot.finish
WITH l AS MATERIALIZED (
  SELECT last_seq, done_seq, priority, quiet_until, expires_at, window_ends_at FROM chatlock_threads
   WHERE tenant=%(tenant)s AND thread_id=%(thread)s AND incarnation=%(incarnation)s AND token=%(token)s AND status='running'
     AND done_seq=%(from_seq)s AND done_seq<%(upto)s AND %(upto)s<=fetched_seq AND holes=0 AND cancel_token IS NULL
     AND current_setting('transaction_isolation')='read committed'
     FOR NO KEY UPDATE),
m AS (
  UPDATE chatlock_messages x SET disposition='answered', turn_token=%(token)s FROM l
   WHERE x.tenant=%(tenant)s AND x.thread_id=%(thread)s AND x.incarnation=%(incarnation)s AND x.seq>l.done_seq AND x.seq<=%(upto)s
     AND x.disposition='pending' RETURNING x.seq),
r AS (
  UPDATE chatlock_turns x SET state='done', from_seq=l.done_seq, to_seq=%(upto)s, reply=%(reply)s, ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint,
         error=CASE WHEN l.expires_at<(extract(epoch FROM clock_timestamp())*1000)::bigint AND l.expires_at<l.window_ends_at THEN 'silent' ELSE x.error END FROM l
   WHERE x.tenant=%(tenant)s AND x.thread_id=%(thread)s AND x.incarnation=%(incarnation)s AND x.token=%(token)s
     AND x.state='running' RETURNING x.ended_at),
u AS (
  UPDATE chatlock_threads t SET status='idle', done_seq=%(upto)s, attempts=0, stalls=0, not_before=0, interrupts=0,
         claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL
    FROM l WHERE t.tenant=%(tenant)s AND t.thread_id=%(thread)s AND t.token=%(token)s RETURNING t.last_seq),
d AS (
  INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until)
  SELECT %(tenant)s, %(thread)s, greatest((extract(epoch FROM clock_timestamp())*1000)::bigint, l.quiet_until), l.priority, 0 FROM u, l WHERE u.last_seq>%(upto)s
  ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0)
SELECT u.last_seq, 1/((SELECT count(*) FROM m)=%(held)s)::int, 1/((SELECT count(*) FROM r)=1)::int FROM l, u;

-- hot.init
INSERT INTO chatlock_threads(tenant, thread_id, agent, token, created_at)
VALUES (%(tenant)s, %(thread)s, %(agent)s, COALESCE((SELECT value FROM chatlock_meta WHERE name='epoch'), 0) * 1000000, (extract(epoch FROM clock_timestamp())*1000)::bigint)
ON CONFLICT DO NOTHING;

-- hot.submit
WITH l AS MATERIALIZED (
  SELECT incarnation, status, token, last_seq, fetched_seq, done_seq, holes, attempts, stalls, not_before, quiet_until, awaiting,
         priority, claimed_at
    FROM chatlock_threads
   WHERE tenant=%(tenant)s AND thread_id=%(thread)s AND current_setting('transaction_isolation')='read committed'
     FOR NO KEY UPDATE),
i AS (
  INSERT INTO chatlock_messages(tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, policy, trace, received_at)
  SELECT %(tenant)s, %(thread)s, l.incarnation, l.last_seq+1, %(message_id)s, %(payload)s, %(payload_hash)s, %(policy)s, %(trace)s,
         (extract(epoch FROM clock_timestamp())*1000)::bigint
    FROM l
   WHERE l.status <> 'deleted' AND l.awaiting IS NULL
     AND CASE WHEN l.status='idle' AND l.last_seq=l.done_seq THEN true ELSE %(store)s AND (l.status <> 'idle' OR NOT %(may_claim)s) END
  ON CONFLICT (tenant, message_id, thread_id, incarnation) DO NOTHING
  RETURNING seq, received_at),
g AS MATERIALIZED (
  SELECT i.seq, i.received_at AS now,
         (%(may_claim)s AND l.status='idle' AND l.last_seq=l.done_seq AND l.attempts=0 AND l.stalls=0
          AND l.not_before<=i.received_at AND l.quiet_until<=i.received_at) AS go
    FROM l, i),
u AS (
  UPDATE chatlock_threads t SET last_seq=g.seq, agent=%(agent)s,
         priority    = CASE WHEN l.last_seq>l.done_seq THEN least(l.priority, %(priority)s) ELSE %(priority)s END,
         status      = CASE WHEN g.go THEN 'running' ELSE t.status END,
         token       = CASE WHEN g.go THEN t.token+1 ELSE t.token END,
         done_seq    = l.done_seq,
         holes       = l.holes,
         fetched_seq = CASE WHEN g.go THEN g.seq ELSE l.fetched_seq END,
         claim_id    = CASE WHEN g.go THEN %(claim_id)s ELSE t.claim_id END,
         owner       = CASE WHEN g.go THEN %(owner)s ELSE t.owner END,
         beat        = CASE WHEN g.go THEN 0 ELSE t.beat END,
         lease_ms    = CASE WHEN g.go THEN %(lease)s ELSE t.lease_ms END,
         claimed_at  = CASE WHEN g.go THEN g.now ELSE t.claimed_at END,
         window_ends_at = CASE WHEN g.go THEN g.now+%(window)s ELSE t.window_ends_at END,
         expires_at  = CASE WHEN g.go THEN g.now+least(%(lease)s,%(window)s) ELSE t.expires_at END
    FROM l, g WHERE t.tenant=%(tenant)s AND t.thread_id=%(thread)s
  RETURNING t.incarnation, t.token, t.status, t.done_seq, t.not_before, t.quiet_until, t.priority, g.go, g.now),
n AS (
  INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state, started_at)
  SELECT %(tenant)s, %(thread)s, u.incarnation, u.token, %(claim_id)s, %(owner)s, %(agent)s, u.done_seq, 'running', u.now
    FROM u WHERE u.go),
d AS (
  INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until)
  SELECT %(tenant)s, %(thread)s,
         greatest(u.now, u.quiet_until, CASE WHEN u.not_before<=u.now+%(backoff_max)s THEN u.not_before ELSE 0 END), u.priority, 0
    FROM u WHERE NOT u.go AND u.status='idle'
  ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0)
SELECT l.incarnation, l.status, g.seq, COALESCE(g.go, false), u.token, l.done_seq, l.holes, g.now, g.now-l.claimed_at,
       CASE WHEN NOT g.go THEN (
SELECT sum(total_ms)/sum(runs) FROM chatlock_windows WHERE agent=%(agent)s AND day>(extract(epoch FROM statement_timestamp())*1000)::bigint/86400000-7 AND total_ms>0) END
  FROM l LEFT JOIN g ON true LEFT JOIN u ON true;
