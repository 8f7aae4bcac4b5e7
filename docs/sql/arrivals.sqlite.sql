-- arrivals.received
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.received_at, chatlock_turns.ended_at - chatlock_turns.started_at AS anon_1
FROM (SELECT DISTINCT ended.tenant AS tenant, ended.thread_id AS thread_id
FROM chatlock_turns AS ended
WHERE ended.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since) AS recent JOIN chatlock_messages ON chatlock_messages.tenant = recent.tenant
AND chatlock_messages.thread_id = recent.thread_id LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_turns.state = 'done'
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.received_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since ORDER BY chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq;

-- arrivals.received_of_all
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.received_at, chatlock_turns.ended_at - chatlock_turns.started_at AS anon_1
FROM (SELECT DISTINCT ended.tenant AS tenant, ended.thread_id AS thread_id
FROM chatlock_turns AS ended
WHERE ended.ended_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since) AS recent JOIN chatlock_messages ON chatlock_messages.tenant = recent.tenant
AND chatlock_messages.thread_id = recent.thread_id LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_turns.state = 'done'
WHERE chatlock_messages.received_at >= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) - :b_since ORDER BY chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq;
