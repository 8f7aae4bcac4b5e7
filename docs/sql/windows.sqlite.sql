-- windows.advance
UPDATE chatlock_meta
SET value=:b_until
WHERE chatlock_meta.name = 'windows_through'
AND chatlock_meta.value = :b_since
RETURNING value;

-- windows.in_force
SELECT chatlock_windows.agent, max(chatlock_windows.longest_ms) AS max_1, sum(chatlock_windows.runs) AS sum_1
FROM chatlock_windows
WHERE chatlock_windows.day > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) / (86400000 + 0.0) - :b_days GROUP BY chatlock_windows.agent;

-- windows.observed
SELECT chatlock_turns.agent, max(CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END - chatlock_turns.started_at) AS max_1, sum(CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END - chatlock_turns.started_at) AS sum_1, count(*) AS count_1
FROM chatlock_turns
WHERE (chatlock_turns.state = 'done'
AND chatlock_turns.error IS NULL
AND chatlock_turns.ended_at > :b_since
AND chatlock_turns.ended_at <= :b_until OR chatlock_turns.state = 'reclaimed'
AND chatlock_turns.error = 'window'
AND chatlock_turns.late_ended_at > :b_since
AND chatlock_turns.late_ended_at <= :b_until)
AND CASE WHEN (chatlock_turns.state = 'reclaimed') THEN chatlock_turns.late_ended_at ELSE chatlock_turns.ended_at END >= chatlock_turns.started_at GROUP BY chatlock_turns.agent;

-- windows.record
INSERT INTO chatlock_windows (agent, day, longest_ms, runs, total_ms)
VALUES (:b_agent, :b_day, :b_longest, :b_runs, :b_total)
ON CONFLICT (agent, day) DO UPDATE
SET longest_ms = max(chatlock_windows.longest_ms, excluded.longest_ms), runs = (chatlock_windows.runs + excluded.runs), total_ms = (chatlock_windows.total_ms + excluded.total_ms);

-- windows.through
SELECT chatlock_meta.value, CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS anon_1
FROM chatlock_meta
WHERE chatlock_meta.name = 'windows_through';

-- windows.typical
SELECT sum(chatlock_windows.total_ms) / (sum(chatlock_windows.runs) + 0.0) AS anon_1
FROM chatlock_windows
WHERE chatlock_windows.agent = :b_agent
AND chatlock_windows.day > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) / (86400000 + 0.0) - 7
AND chatlock_windows.total_ms > 0;
