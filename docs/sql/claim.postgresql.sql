-- claim.agent
SELECT chatlock_threads.agent
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR;

-- claim.update
UPDATE chatlock_threads
SET status='running', token=(chatlock_threads.token + 1), claim_id=:b_claim_id::VARCHAR, owner=:b_owner::VARCHAR, claimed_at=:b_now::BIGINT, expires_at=:b_life_end::BIGINT, window_ends_at=:b_window_end::BIGINT, lease_ms=:b_lease::BIGINT, beat=0, fetched_seq=chatlock_threads.done_seq, cancel_token=NULL
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq
RETURNING chatlock_threads.token;
