-- forget.old_dead
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq
FROM chatlock_turns JOIN chatlock_messages ON chatlock_messages.tenant = chatlock_turns.tenant
AND chatlock_messages.thread_id = chatlock_turns.thread_id
AND chatlock_messages.incarnation = chatlock_turns.incarnation
AND chatlock_messages.seq = chatlock_turns.to_seq
AND chatlock_messages.disposition = 'dead'
AND chatlock_messages.payload IS NOT NULL
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.state = 'gave_up'
AND chatlock_turns.ended_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_age ORDER BY chatlock_turns.ended_at
 LIMIT :b_limit OFFSET 0;

-- forget.old_dead_of_all
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq
FROM chatlock_turns JOIN chatlock_messages ON chatlock_messages.tenant = chatlock_turns.tenant
AND chatlock_messages.thread_id = chatlock_turns.thread_id
AND chatlock_messages.incarnation = chatlock_turns.incarnation
AND chatlock_messages.seq = chatlock_turns.to_seq
AND chatlock_messages.disposition = 'dead'
AND chatlock_messages.payload IS NOT NULL
WHERE chatlock_turns.state = 'gave_up'
AND chatlock_turns.ended_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_age ORDER BY chatlock_turns.ended_at
 LIMIT :b_limit OFFSET 0;

-- forget.payload
UPDATE chatlock_messages
SET payload=NULL
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.seq = :b_seq
AND chatlock_messages.disposition = 'dead';
