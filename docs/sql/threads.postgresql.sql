-- threads.look
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation AS life, chatlock_threads.status, chatlock_threads.token, chatlock_threads.done_seq, chatlock_threads.holes, NOT (chatlock_threads.awaiting IS NOT NULL
AND coalesce(chatlock_threads.awaiting_rule, '') = 'hold')
AND (chatlock_threads.not_before <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_threads.not_before > (extract(epoch FROM statement_timestamp())*1000)::bigint + :b_backoff_max::BIGINT)
AND (chatlock_threads.quiet_until <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_threads.quiet_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 3600000) AS may_start
FROM chatlock_threads
WHERE (chatlock_threads.tenant, chatlock_threads.thread_id) IN (:b_waited);
