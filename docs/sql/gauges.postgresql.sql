-- gauges.read
SELECT (SELECT count(*) AS count_1
FROM chatlock_turns
WHERE chatlock_turns.state = 'running') AS running, (SELECT count(*) AS count_2
FROM chatlock_due) AS waiting, (extract(epoch FROM statement_timestamp())*1000)::bigint - (SELECT min(chatlock_due.due_at) AS min_1
FROM chatlock_due) AS oldest_due_age_ms, (SELECT count(*) AS count_3
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running'
AND chatlock_threads.expires_at < (extract(epoch FROM statement_timestamp())*1000)::bigint) AS stuck, (SELECT count(*) AS count_4
FROM chatlock_intents
WHERE chatlock_intents.state IN ('pending', 'leased')) AS intents;
