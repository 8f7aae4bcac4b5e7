-- delete.messages
UPDATE chatlock_messages
SET disposition='deleted'
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.disposition = 'pending';

-- delete.thread
UPDATE chatlock_threads
SET status='deleted', token=(chatlock_threads.token + 1), claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL, cancel_token=NULL, awaiting=NULL, cancel_until=NULL, cancel_queued=NULL, cancel_upto=NULL, awaiting_rule=NULL
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.status != 'deleted'
RETURNING chatlock_threads.token;

-- delete.turn
UPDATE chatlock_turns
SET state='released', error='deleted', ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.state = 'running';
