-- windows.advance
UPDATE chatlock_meta
SET value=:b_until::BIGINT
WHERE chatlock_meta.name = 'windows_through'
AND chatlock_meta.value = :b_since::BIGINT
RETURNING chatlock_meta.value;

-- windows.in_force
SELECT chatlock_windows.agent, max(chatlock_windows.longest_ms) AS max_1, sum(chatlock_windows.runs) AS sum_1
FROM chatlock_windows
WHERE chatlock_windows.day > (extract(epoch FROM clock_timestamp())*1000)::bigint / CAST(86400000 AS NUMERIC) - :b_days GROUP BY chatlock_windows.agent;

-- windows.observed
SELECT chatlock_turns.agent, max(CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END - chatlock_turns.started_at) AS max_1, sum(CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END - chatlock_turns.started_at) AS sum_1, count(*) AS count_1
FROM chatlock_turns
WHERE (chatlock_turns.state = 'done'
AND chatlock_turns.error IS NULL
AND chatlock_turns.ended_at > :b_since::BIGINT
AND chatlock_turns.ended_at <= :b_until::BIGINT OR chatlock_turns.state = 'reclaimed'
AND chatlock_turns.error = 'window'
AND chatlock_turns.late_ended_at > :b_since::BIGINT
AND chatlock_turns.late_ended_at <= :b_until::BIGINT)
AND CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END >= chatlock_turns.started_at GROUP BY chatlock_turns.agent;

-- windows.record
INSERT INTO chatlock_windows (agent, day, longest_ms, runs, total_ms)
VALUES (:b_agent::VARCHAR, :b_day::BIGINT, :b_longest::BIGINT, :b_runs::BIGINT, :b_total::BIGINT)
ON CONFLICT (agent, day) DO UPDATE
SET longest_ms = greatest(chatlock_windows.longest_ms, excluded.longest_ms), runs = (chatlock_windows.runs + excluded.runs), total_ms = (chatlock_windows.total_ms + excluded.total_ms);

-- windows.through
SELECT chatlock_meta.value, (extract(epoch FROM statement_timestamp())*1000)::bigint AS anon_1
FROM chatlock_meta
WHERE chatlock_meta.name = 'windows_through';

-- windows.typical
SELECT sum(chatlock_windows.total_ms) / CAST(sum(chatlock_windows.runs) AS NUMERIC) AS anon_1
FROM chatlock_windows
WHERE chatlock_windows.agent = :b_agent::VARCHAR
AND chatlock_windows.day > (extract(epoch FROM statement_timestamp())*1000)::bigint / CAST(86400000 AS NUMERIC) - 7
AND chatlock_windows.total_ms > 0;
