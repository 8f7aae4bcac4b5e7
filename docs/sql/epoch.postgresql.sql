-- epoch.count
SELECT count(*) AS count_1
FROM chatlock_threads;

-- epoch.raise
UPDATE chatlock_meta
SET value=(chatlock_meta.value + 1)
WHERE chatlock_meta.name = 'epoch'
RETURNING chatlock_meta.value;

-- epoch.threads
SELECT chatlock_threads.tenant, chatlock_threads.thread_id
FROM chatlock_threads
WHERE (chatlock_threads.tenant, chatlock_threads.thread_id) > (:b_tenant, :b_thread) ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit;

-- epoch.token
UPDATE chatlock_threads
SET token=(chatlock_threads.token + 1000000)
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.incarnation = :b_incarnation::BIGINT
AND chatlock_threads.token = :b_token::BIGINT
AND chatlock_threads.status != 'running'
RETURNING chatlock_threads.token;
