-- contents.attempts
SELECT chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation, chatlock_turns.token, chatlock_turns.agent, chatlock_turns.owner, chatlock_turns.state, chatlock_turns.from_seq, chatlock_turns.to_seq, chatlock_turns.error, chatlock_turns.started_at, chatlock_turns.ended_at, chatlock_turns.late_ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_turns.reply END AS reply, length(chatlock_turns.reply) AS reply_chars
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.incarnation = :b_incarnation::BIGINT
AND chatlock_turns.from_seq = :b_seq - 1 ORDER BY chatlock_turns.token;

-- contents.audit
SELECT chatlock_audit.audit_id, chatlock_audit.at, chatlock_audit.tenant, chatlock_audit.thread_id, chatlock_audit.incarnation, chatlock_audit.token, chatlock_audit.action, chatlock_audit.actor, chatlock_audit.reason
FROM chatlock_audit
WHERE chatlock_audit.tenant = :b_tenant::VARCHAR
AND chatlock_audit.at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT ORDER BY chatlock_audit.audit_id DESC
 LIMIT :b_limit;

-- contents.audit_of_all
SELECT chatlock_audit.audit_id, chatlock_audit.at, chatlock_audit.tenant, chatlock_audit.thread_id, chatlock_audit.incarnation, chatlock_audit.token, chatlock_audit.action, chatlock_audit.actor, chatlock_audit.reason
FROM chatlock_audit
WHERE chatlock_audit.at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT ORDER BY chatlock_audit.audit_id DESC
 LIMIT :b_limit;

-- contents.audit_of_thread
SELECT chatlock_audit.audit_id, chatlock_audit.at, chatlock_audit.tenant, chatlock_audit.thread_id, chatlock_audit.incarnation, chatlock_audit.token, chatlock_audit.action, chatlock_audit.actor, chatlock_audit.reason
FROM chatlock_audit
WHERE chatlock_audit.tenant = :b_tenant::VARCHAR
AND chatlock_audit.thread_id = :b_thread::VARCHAR
AND chatlock_audit.at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT ORDER BY chatlock_audit.audit_id DESC
 LIMIT :b_limit;

-- contents.dead
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND chatlock_threads.status = 'running'
AND chatlock_messages.seq <= chatlock_threads.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM chatlock_turns JOIN chatlock_messages ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.seq = chatlock_turns.to_seq JOIN chatlock_threads ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.state = 'gave_up'
AND chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND chatlock_messages.disposition = 'dead' ORDER BY chatlock_turns.ended_at DESC
 LIMIT :b_limit;

-- contents.dead_of_all
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND chatlock_threads.status = 'running'
AND chatlock_messages.seq <= chatlock_threads.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM chatlock_turns JOIN chatlock_messages ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.seq = chatlock_turns.to_seq JOIN chatlock_threads ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
WHERE chatlock_turns.state = 'gave_up'
AND chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND chatlock_messages.disposition = 'dead' ORDER BY chatlock_turns.ended_at DESC
 LIMIT :b_limit;

-- contents.dead_of_thread
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND chatlock_threads.status = 'running'
AND chatlock_messages.seq <= chatlock_threads.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM chatlock_turns JOIN chatlock_messages ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
AND chatlock_messages.seq = chatlock_turns.to_seq JOIN chatlock_threads ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND chatlock_turns.state = 'gave_up'
AND chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND chatlock_messages.disposition = 'dead' ORDER BY chatlock_turns.ended_at DESC
 LIMIT :b_limit;

-- contents.inbox
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND waiting.status = 'running'
AND chatlock_messages.seq <= waiting.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM (SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.incarnation AS incarnation, chatlock_threads.agent AS agent, chatlock_threads.status AS status, chatlock_threads.token AS token, chatlock_threads.claim_id AS claim_id, chatlock_threads.owner AS owner, chatlock_threads.claimed_at AS claimed_at, chatlock_threads.expires_at AS expires_at, chatlock_threads.window_ends_at AS window_ends_at, chatlock_threads.lease_ms AS lease_ms, chatlock_threads.beat AS beat, chatlock_threads.last_seq AS last_seq, chatlock_threads.fetched_seq AS fetched_seq, chatlock_threads.done_seq AS done_seq, chatlock_threads.holes AS holes, chatlock_threads.attempts AS attempts, chatlock_threads.stalls AS stalls, chatlock_threads.not_before AS not_before, chatlock_threads.quiet_until AS quiet_until, chatlock_threads.cancel_token AS cancel_token, chatlock_threads.awaiting AS awaiting, chatlock_threads.priority AS priority, chatlock_threads.created_at AS created_at, chatlock_threads.cancel_until AS cancel_until, chatlock_threads.cancel_queued AS cancel_queued, chatlock_threads.cancel_upto AS cancel_upto, chatlock_threads.interrupts AS interrupts, chatlock_threads.awaiting_rule AS awaiting_rule
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.last_seq > chatlock_threads.done_seq ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit) AS waiting JOIN chatlock_messages ON chatlock_messages.tenant = waiting.tenant
AND chatlock_messages.thread_id = waiting.thread_id
AND chatlock_messages.incarnation = waiting.incarnation LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_messages.seq > waiting.done_seq
AND chatlock_messages.disposition = 'pending' ORDER BY waiting.tenant, waiting.thread_id, chatlock_messages.seq
 LIMIT :b_limit;

-- contents.inbox_of_all
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND waiting.status = 'running'
AND chatlock_messages.seq <= waiting.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM (SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.incarnation AS incarnation, chatlock_threads.agent AS agent, chatlock_threads.status AS status, chatlock_threads.token AS token, chatlock_threads.claim_id AS claim_id, chatlock_threads.owner AS owner, chatlock_threads.claimed_at AS claimed_at, chatlock_threads.expires_at AS expires_at, chatlock_threads.window_ends_at AS window_ends_at, chatlock_threads.lease_ms AS lease_ms, chatlock_threads.beat AS beat, chatlock_threads.last_seq AS last_seq, chatlock_threads.fetched_seq AS fetched_seq, chatlock_threads.done_seq AS done_seq, chatlock_threads.holes AS holes, chatlock_threads.attempts AS attempts, chatlock_threads.stalls AS stalls, chatlock_threads.not_before AS not_before, chatlock_threads.quiet_until AS quiet_until, chatlock_threads.cancel_token AS cancel_token, chatlock_threads.awaiting AS awaiting, chatlock_threads.priority AS priority, chatlock_threads.created_at AS created_at, chatlock_threads.cancel_until AS cancel_until, chatlock_threads.cancel_queued AS cancel_queued, chatlock_threads.cancel_upto AS cancel_upto, chatlock_threads.interrupts AS interrupts, chatlock_threads.awaiting_rule AS awaiting_rule
FROM chatlock_threads
WHERE chatlock_threads.last_seq > chatlock_threads.done_seq ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit) AS waiting JOIN chatlock_messages ON chatlock_messages.tenant = waiting.tenant
AND chatlock_messages.thread_id = waiting.thread_id
AND chatlock_messages.incarnation = waiting.incarnation LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_messages.seq > waiting.done_seq
AND chatlock_messages.disposition = 'pending' ORDER BY waiting.tenant, waiting.thread_id, chatlock_messages.seq
 LIMIT :b_limit;

-- contents.inbox_of_thread
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND waiting.status = 'running'
AND chatlock_messages.seq <= waiting.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM (SELECT chatlock_threads.tenant AS tenant, chatlock_threads.thread_id AS thread_id, chatlock_threads.incarnation AS incarnation, chatlock_threads.agent AS agent, chatlock_threads.status AS status, chatlock_threads.token AS token, chatlock_threads.claim_id AS claim_id, chatlock_threads.owner AS owner, chatlock_threads.claimed_at AS claimed_at, chatlock_threads.expires_at AS expires_at, chatlock_threads.window_ends_at AS window_ends_at, chatlock_threads.lease_ms AS lease_ms, chatlock_threads.beat AS beat, chatlock_threads.last_seq AS last_seq, chatlock_threads.fetched_seq AS fetched_seq, chatlock_threads.done_seq AS done_seq, chatlock_threads.holes AS holes, chatlock_threads.attempts AS attempts, chatlock_threads.stalls AS stalls, chatlock_threads.not_before AS not_before, chatlock_threads.quiet_until AS quiet_until, chatlock_threads.cancel_token AS cancel_token, chatlock_threads.awaiting AS awaiting, chatlock_threads.priority AS priority, chatlock_threads.created_at AS created_at, chatlock_threads.cancel_until AS cancel_until, chatlock_threads.cancel_queued AS cancel_queued, chatlock_threads.cancel_upto AS cancel_upto, chatlock_threads.interrupts AS interrupts, chatlock_threads.awaiting_rule AS awaiting_rule
FROM chatlock_threads
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_threads.last_seq > chatlock_threads.done_seq ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id
 LIMIT :b_limit) AS waiting JOIN chatlock_messages ON chatlock_messages.tenant = waiting.tenant
AND chatlock_messages.thread_id = waiting.thread_id
AND chatlock_messages.incarnation = waiting.incarnation LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_messages.seq > waiting.done_seq
AND chatlock_messages.disposition = 'pending' ORDER BY waiting.tenant, waiting.thread_id, chatlock_messages.seq
 LIMIT :b_limit;

-- contents.intent
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.agent, chatlock_intents.state, chatlock_intents.attempts, chatlock_intents.step_key, chatlock_intents.error, chatlock_intents.not_before, chatlock_intents.leased_until, chatlock_intents.expires_at, chatlock_intents.created_at, chatlock_intents.ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_intents.payload END AS payload, length(chatlock_intents.payload) AS payload_chars
FROM chatlock_intents
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.token = :b_token::BIGINT
AND chatlock_intents.name = :b_name::VARCHAR;

-- contents.intents
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.agent, chatlock_intents.state, chatlock_intents.attempts, chatlock_intents.step_key, chatlock_intents.error, chatlock_intents.not_before, chatlock_intents.leased_until, chatlock_intents.expires_at, chatlock_intents.created_at, chatlock_intents.ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_intents.payload END AS payload, length(chatlock_intents.payload) AS payload_chars
FROM chatlock_intents
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND (CAST(:b_state AS TEXT) IS NULL OR chatlock_intents.state = CAST(:b_state AS TEXT)) ORDER BY chatlock_intents.created_at DESC, chatlock_intents.thread_id, chatlock_intents.token
 LIMIT :b_limit;

-- contents.intents_of_all
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.agent, chatlock_intents.state, chatlock_intents.attempts, chatlock_intents.step_key, chatlock_intents.error, chatlock_intents.not_before, chatlock_intents.leased_until, chatlock_intents.expires_at, chatlock_intents.created_at, chatlock_intents.ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_intents.payload END AS payload, length(chatlock_intents.payload) AS payload_chars
FROM chatlock_intents
WHERE CAST(:b_state AS TEXT) IS NULL OR chatlock_intents.state = CAST(:b_state AS TEXT) ORDER BY chatlock_intents.created_at DESC, chatlock_intents.thread_id, chatlock_intents.token
 LIMIT :b_limit;

-- contents.intents_of_thread
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.agent, chatlock_intents.state, chatlock_intents.attempts, chatlock_intents.step_key, chatlock_intents.error, chatlock_intents.not_before, chatlock_intents.leased_until, chatlock_intents.expires_at, chatlock_intents.created_at, chatlock_intents.ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_intents.payload END AS payload, length(chatlock_intents.payload) AS payload_chars
FROM chatlock_intents
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND (CAST(:b_state AS TEXT) IS NULL OR chatlock_intents.state = CAST(:b_state AS TEXT)) ORDER BY chatlock_intents.created_at DESC, chatlock_intents.thread_id, chatlock_intents.token
 LIMIT :b_limit;

-- contents.message
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.disposition, chatlock_messages.turn_token, CASE WHEN (chatlock_messages.disposition = 'pending'
AND chatlock_threads.status = 'running'
AND chatlock_messages.seq <= chatlock_threads.fetched_seq) THEN 1 ELSE 0 END AS in_turn, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.redrive_of, chatlock_turns.error, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_messages.payload END AS payload, length(chatlock_messages.payload) AS payload_chars
FROM chatlock_threads JOIN chatlock_messages ON chatlock_messages.tenant = chatlock_threads.tenant
AND chatlock_messages.thread_id = chatlock_threads.thread_id
AND chatlock_messages.incarnation = chatlock_threads.incarnation LEFT OUTER JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_threads.tenant = :b_tenant::VARCHAR
AND chatlock_threads.thread_id = :b_thread::VARCHAR
AND chatlock_messages.message_id = :b_message_id::VARCHAR;

-- contents.turns
SELECT chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation, chatlock_turns.token, chatlock_turns.agent, chatlock_turns.owner, chatlock_turns.state, chatlock_turns.from_seq, chatlock_turns.to_seq, chatlock_turns.error, chatlock_turns.started_at, chatlock_turns.ended_at, chatlock_turns.late_ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_turns.reply END AS reply, length(chatlock_turns.reply) AS reply_chars
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND (CAST(:b_state AS TEXT) IS NULL OR chatlock_turns.state = CAST(:b_state AS TEXT)) ORDER BY chatlock_turns.ended_at DESC
 LIMIT :b_limit;

-- contents.turns_of_all
SELECT chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation, chatlock_turns.token, chatlock_turns.agent, chatlock_turns.owner, chatlock_turns.state, chatlock_turns.from_seq, chatlock_turns.to_seq, chatlock_turns.error, chatlock_turns.started_at, chatlock_turns.ended_at, chatlock_turns.late_ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_turns.reply END AS reply, length(chatlock_turns.reply) AS reply_chars
FROM chatlock_turns
WHERE chatlock_turns.ended_at >= (extract(epoch FROM statement_timestamp())*1000)::bigint - :b_since::BIGINT
AND (CAST(:b_state AS TEXT) IS NULL OR chatlock_turns.state = CAST(:b_state AS TEXT)) ORDER BY chatlock_turns.ended_at DESC
 LIMIT :b_limit;

-- contents.turns_of_thread
SELECT chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation, chatlock_turns.token, chatlock_turns.agent, chatlock_turns.owner, chatlock_turns.state, chatlock_turns.from_seq, chatlock_turns.to_seq, chatlock_turns.error, chatlock_turns.started_at, chatlock_turns.ended_at, chatlock_turns.late_ended_at, CASE WHEN (CAST(:b_payloads AS INTEGER) = 1) THEN chatlock_turns.reply END AS reply, length(chatlock_turns.reply) AS reply_chars
FROM chatlock_turns
WHERE chatlock_turns.tenant = :b_tenant::VARCHAR
AND chatlock_turns.thread_id = :b_thread::VARCHAR
AND (CAST(:b_state AS TEXT) IS NULL OR chatlock_turns.state = CAST(:b_state AS TEXT)) ORDER BY chatlock_turns.token DESC
 LIMIT :b_limit;
