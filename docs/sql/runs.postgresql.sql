-- runs.cut_off
SELECT chatlock_turns.agent, count(*) AS count_1, max(chatlock_turns.late_ended_at - chatlock_turns.started_at) AS max_1
FROM chatlock_turns
WHERE chatlock_turns.late_ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND chatlock_turns.state = 'reclaimed'
AND chatlock_turns.error = 'window'
AND chatlock_turns.late_ended_at IS NOT NULL GROUP BY chatlock_turns.agent ORDER BY chatlock_turns.agent;

-- runs.days
SELECT chatlock_windows.agent, chatlock_windows.day, chatlock_windows.longest_ms, chatlock_windows.runs
FROM chatlock_windows
WHERE (CAST(:b_agent AS TEXT) IS NULL OR chatlock_windows.agent = CAST(:b_agent AS TEXT))
AND chatlock_windows.day > (extract(epoch FROM statement_timestamp())*1000)::bigint / CAST(86400000 AS NUMERIC) - :b_days ORDER BY chatlock_windows.agent, chatlock_windows.day DESC;

-- runs.recorded
SELECT chatlock_turns.agent, chatlock_turns.started_at, CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END AS anon_1
FROM chatlock_turns
WHERE chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND (chatlock_turns.state = 'done'
AND chatlock_turns.error IS NULL OR chatlock_turns.state = 'reclaimed'
AND chatlock_turns.error = 'window'
AND chatlock_turns.late_ended_at IS NOT NULL)
AND (CAST(:b_agent AS TEXT) IS NULL OR chatlock_turns.agent = CAST(:b_agent AS TEXT))
AND CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END >= chatlock_turns.started_at ORDER BY chatlock_turns.started_at;
