-- threads.look
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation AS life, chatlock_threads.status, chatlock_threads.token, chatlock_threads.done_seq, chatlock_threads.holes, NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (chatlock_threads.not_before <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_threads.not_before > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_backoff_max)
AND (chatlock_threads.quiet_until <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_threads.quiet_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 3600000) AS may_start
FROM chatlock_threads JOIN ((:b_waited)) AS waited ON chatlock_threads.tenant = waited.column1
AND chatlock_threads.thread_id = waited.column2;
