-- claim.agent
SELECT chatlock_threads.agent
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread;

-- claim.update
UPDATE chatlock_threads
SET status='running', token=(chatlock_threads.token + 1), claim_id=:b_claim_id, owner=:b_owner, claimed_at=:b_now, expires_at=:b_life_end, window_ends_at=:b_window_end, lease_ms=:b_lease, beat=0, fetched_seq=chatlock_threads.done_seq, cancel_token=NULL
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
RETURNING token;
