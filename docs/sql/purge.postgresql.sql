-- purge.effects
UPDATE chatlock_intents
SET payload=NULL
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.ended_at < :b_horizon::BIGINT
AND chatlock_intents.payload IS NOT NULL;

-- purge.left_effects
SELECT DISTINCT chatlock_intents.tenant, chatlock_intents.thread_id
FROM chatlock_intents
WHERE (chatlock_intents.tenant, chatlock_intents.thread_id) > (:b_tenant, :b_thread)
AND (chatlock_intents.tenant, chatlock_intents.thread_id) <= (:b_last_tenant, :b_last_thread)
AND chatlock_intents.ended_at < :b_horizon::BIGINT
AND chatlock_intents.payload IS NOT NULL;

-- purge.left_messages
SELECT DISTINCT chatlock_messages.tenant, chatlock_messages.thread_id
FROM chatlock_messages JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_messages.tenant
AND chatlock_threads.thread_id = chatlock_messages.thread_id
WHERE (chatlock_messages.tenant, chatlock_messages.thread_id) > (:b_tenant, :b_thread)
AND (chatlock_messages.tenant, chatlock_messages.thread_id) <= (:b_last_tenant, :b_last_thread)
AND chatlock_messages.received_at < :b_horizon::BIGINT
AND (chatlock_messages.payload IS NOT NULL
AND chatlock_messages.disposition IN ('superseded', 'cancelled', 'expired', 'deleted') OR chatlock_messages.incarnation < chatlock_threads.incarnation OR chatlock_threads.status = 'deleted');

-- purge.mark
INSERT INTO chatlock_meta (name, value)
VALUES ('purged_through', :b_until::BIGINT)
ON CONFLICT (name) DO UPDATE
SET value = excluded.value;

-- purge.messages
DELETE FROM chatlock_messages
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.received_at < :b_horizon::BIGINT
AND (chatlock_messages.incarnation < :b_live::BIGINT OR :b_deleted = 1);

-- purge.old_turns
SELECT chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.ended_at
FROM chatlock_turns
WHERE chatlock_turns.ended_at >= :b_since::BIGINT
AND chatlock_turns.ended_at < (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_age::BIGINT
AND ((SELECT chatlock_turns.ended_at
FROM chatlock_turns
WHERE chatlock_turns.ended_at >= :b_since::BIGINT
AND chatlock_turns.ended_at < (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_age::BIGINT ORDER BY chatlock_turns.ended_at
 LIMIT 1 OFFSET :b_limit - 1) IS NULL OR chatlock_turns.ended_at <= (SELECT chatlock_turns.ended_at
FROM chatlock_turns
WHERE chatlock_turns.ended_at >= :b_since::BIGINT
AND chatlock_turns.ended_at < (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_age::BIGINT ORDER BY chatlock_turns.ended_at
 LIMIT 1 OFFSET :b_limit - 1)) ORDER BY chatlock_turns.ended_at;

-- purge.page
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, (extract(epoch FROM statement_timestamp())*1000)::bigint AS now
FROM chatlock_threads
WHERE (chatlock_threads.tenant, chatlock_threads.thread_id) > (:b_tenant, :b_thread) ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit;

-- purge.payloads
UPDATE chatlock_messages
SET payload=NULL
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.seq <= :b_done::BIGINT
AND chatlock_messages.received_at < :b_horizon::BIGINT
AND chatlock_messages.disposition != 'pending'
AND chatlock_messages.payload IS NOT NULL;

-- purge.replies
UPDATE chatlock_turns
SET reply=NULL, mark=NULL
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.state IN ('done', 'gave_up')
AND chatlock_turns.ended_at < :b_horizon::BIGINT
AND (chatlock_turns.reply IS NOT NULL OR chatlock_turns.mark IS NOT NULL);

-- purge.turns
DELETE FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.ended_at < :b_horizon::BIGINT
AND (chatlock_turns.state IN ('failed', 'released', 'reclaimed')
AND NOT (chatlock_turns.state = 'released'
AND chatlock_turns.error IS NOT DISTINCT FROM 'rolled back'
AND chatlock_turns.token > coalesce((SELECT max(done_turns.token) AS max_1
FROM chatlock_turns AS done_turns
WHERE done_turns.tenant = :b_tenant::VARCHAR
AND done_turns.thread_id = :b_thread::VARCHAR
AND done_turns.incarnation = :b_live::BIGINT
AND done_turns.state = 'done'), 0)) OR chatlock_turns.incarnation < :b_live::BIGINT OR :b_deleted = 1);

-- purge.watermark
SELECT chatlock_meta.value
FROM chatlock_meta
WHERE chatlock_meta.name = 'purged_through'
AND chatlock_meta.value <= (extract(epoch FROM statement_timestamp())*1000)::bigint;
