-- load.clock
SELECT (extract(epoch FROM statement_timestamp())*1000)::bigint AS anon_1;

-- load.ended
SELECT chatlock_turns.tenant, chatlock_turns.agent, chatlock_turns.state, count(*) AS count_1, sum(chatlock_turns.ended_at - chatlock_turns.started_at) AS sum_1, max(chatlock_turns.ended_at - chatlock_turns.started_at) AS max_1
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT GROUP BY chatlock_turns.tenant, chatlock_turns.agent, chatlock_turns.state;

-- load.ended_of_all
SELECT chatlock_turns.tenant, chatlock_turns.agent, chatlock_turns.state, count(*) AS count_1, sum(chatlock_turns.ended_at - chatlock_turns.started_at) AS sum_1, max(chatlock_turns.ended_at - chatlock_turns.started_at) AS max_1
FROM chatlock_turns
WHERE chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT GROUP BY chatlock_turns.tenant, chatlock_turns.agent, chatlock_turns.state;

-- load.intents
SELECT chatlock_intents.tenant, chatlock_intents.agent, count(*) AS count_1
FROM chatlock_intents
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.state IN ('pending', 'leased') GROUP BY chatlock_intents.tenant, chatlock_intents.agent;

-- load.intents_of_all
SELECT chatlock_intents.tenant, chatlock_intents.agent, count(*) AS count_1
FROM chatlock_intents
WHERE chatlock_intents.state IN ('pending', 'leased') GROUP BY chatlock_intents.tenant, chatlock_intents.agent;

-- load.running
SELECT chatlock_turns.tenant, chatlock_turns.agent, count(*) AS count_1, sum(CASE WHEN (chatlock_threads.expires_at < (extract(epoch FROM statement_timestamp())*1000)::bigint) THEN 1 ELSE 0 END) AS sum_1
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running' GROUP BY chatlock_turns.tenant, chatlock_turns.agent;

-- load.running_of_all
SELECT chatlock_turns.tenant, chatlock_turns.agent, count(*) AS count_1, sum(CASE WHEN (chatlock_threads.expires_at < (extract(epoch FROM statement_timestamp())*1000)::bigint) THEN 1 ELSE 0 END) AS sum_1
FROM chatlock_turns JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_turns.tenant
AND chatlock_threads.thread_id = chatlock_turns.thread_id
AND chatlock_threads.token = chatlock_turns.token
WHERE chatlock_turns.state = 'running'
AND chatlock_threads.status = 'running' GROUP BY chatlock_turns.tenant, chatlock_turns.agent;

-- load.waiting
SELECT chatlock_due.tenant, chatlock_threads.agent, count(*) AS count_1, (extract(epoch FROM statement_timestamp())*1000)::bigint - min(chatlock_due.due_at) AS anon_1
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE chatlock_due.tenant = :b_tenant::VARCHAR
AND chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq GROUP BY chatlock_due.tenant, chatlock_threads.agent;

-- load.waiting_of_all
SELECT chatlock_due.tenant, chatlock_threads.agent, count(*) AS count_1, (extract(epoch FROM statement_timestamp())*1000)::bigint - min(chatlock_due.due_at) AS anon_1
FROM chatlock_due JOIN chatlock_threads ON chatlock_threads.tenant = chatlock_due.tenant
AND chatlock_threads.thread_id = chatlock_due.thread_id
WHERE chatlock_threads.status = 'idle'
AND chatlock_threads.last_seq > chatlock_threads.done_seq GROUP BY chatlock_due.tenant, chatlock_threads.agent;
