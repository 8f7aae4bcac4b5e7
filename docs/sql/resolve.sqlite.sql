-- resolve.message
UPDATE chatlock_messages
SET disposition=:b_new_disposition
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq = :b_seq
AND chatlock_messages.disposition = 'pending'
RETURNING seq;

-- resolve.thread
UPDATE chatlock_threads
SET fetched_seq=CASE WHEN (chatlock_threads.fetched_seq < :b_done) THEN :b_done ELSE chatlock_threads.fetched_seq END, done_seq=:b_done, holes=:b_new_holes, attempts=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.attempts END, stalls=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.stalls END, not_before=CASE WHEN (:b_done > chatlock_threads.done_seq) THEN 0 ELSE chatlock_threads.not_before END
WHERE chatlock_threads.tenant = :b_tenant
AND chatlock_threads.thread_id = :b_thread
AND chatlock_threads.incarnation = :b_incarnation
AND chatlock_threads.token = :b_token
RETURNING not_before;
