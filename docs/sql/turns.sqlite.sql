-- turns.typical
SELECT avg(lately.ms) AS avg_1
FROM (SELECT chatlock_turns.ended_at - chatlock_turns.started_at AS ms
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant
AND chatlock_turns.thread_id = :b_thread
AND chatlock_turns.incarnation = :b_incarnation
AND chatlock_turns.state = 'done' ORDER BY chatlock_turns.token DESC
 LIMIT 5 OFFSET 0) AS lately;
