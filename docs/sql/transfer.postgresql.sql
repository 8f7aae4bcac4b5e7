-- transfer.count_audit
SELECT count(*) AS count_1
FROM chatlock_audit;

-- transfer.count_due
SELECT count(*) AS count_1
FROM chatlock_due;

-- transfer.count_fences
SELECT count(*) AS count_1
FROM chatlock_fences;

-- transfer.count_intents
SELECT count(*) AS count_1
FROM chatlock_intents;

-- transfer.count_messages
SELECT count(*) AS count_1
FROM chatlock_messages;

-- transfer.count_sessions
SELECT count(*) AS count_1
FROM chatlock_sessions;

-- transfer.count_threads
SELECT count(*) AS count_1
FROM chatlock_threads;

-- transfer.count_turns
SELECT count(*) AS count_1
FROM chatlock_turns;

-- transfer.count_windows
SELECT count(*) AS count_1
FROM chatlock_windows;

-- transfer.lock
LOCK TABLE chatlock_threads IN SHARE ROW EXCLUSIVE MODE;

-- transfer.mark
INSERT INTO chatlock_meta (name, value) SELECT 'moved_at' AS anon_1, (extract(epoch FROM clock_timestamp())*1000)::bigint AS anon_2;

-- transfer.read_audit
SELECT chatlock_audit.at, chatlock_audit.tenant, chatlock_audit.thread_id, chatlock_audit.incarnation, chatlock_audit.token, chatlock_audit.action, chatlock_audit.actor, chatlock_audit.reason
FROM chatlock_audit ORDER BY chatlock_audit.audit_id;

-- transfer.read_due
SELECT chatlock_due.tenant, chatlock_due.thread_id, chatlock_due.due_at, chatlock_due.priority, chatlock_due.dispatched_until
FROM chatlock_due ORDER BY chatlock_due.tenant, chatlock_due.thread_id;

-- transfer.read_fences
SELECT chatlock_fences.tenant, chatlock_fences.thread_id, chatlock_fences.resource, chatlock_fences.highest
FROM chatlock_fences ORDER BY chatlock_fences.tenant, chatlock_fences.thread_id, chatlock_fences.resource;

-- transfer.read_intents
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.agent, chatlock_intents.step_key, chatlock_intents.payload, chatlock_intents.state, chatlock_intents.attempts, chatlock_intents.lease_token, chatlock_intents.leased_until, chatlock_intents.not_before, chatlock_intents.expires_at, chatlock_intents.created_at, chatlock_intents.ended_at, chatlock_intents.error
FROM chatlock_intents ORDER BY chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name;

-- transfer.read_messages
SELECT chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq, chatlock_messages.message_id, chatlock_messages.payload, chatlock_messages.payload_hash, chatlock_messages.disposition, chatlock_messages.turn_token, chatlock_messages.policy, chatlock_messages.received_at, chatlock_messages.expire_ms, chatlock_messages.redrive_of, chatlock_messages.trace, chatlock_messages.superseded_by
FROM chatlock_messages ORDER BY chatlock_messages.tenant, chatlock_messages.thread_id, chatlock_messages.incarnation, chatlock_messages.seq;

-- transfer.read_meta
SELECT chatlock_meta.name, chatlock_meta.value
FROM chatlock_meta;

-- transfer.read_sessions
SELECT chatlock_sessions.tenant, chatlock_sessions.thread_id, chatlock_sessions.name, chatlock_sessions.value, chatlock_sessions.token
FROM chatlock_sessions ORDER BY chatlock_sessions.tenant, chatlock_sessions.thread_id, chatlock_sessions.name;

-- transfer.read_threads
SELECT chatlock_threads.tenant, chatlock_threads.thread_id, chatlock_threads.incarnation, chatlock_threads.agent, chatlock_threads.status, chatlock_threads.token, chatlock_threads.claim_id, chatlock_threads.owner, chatlock_threads.claimed_at, chatlock_threads.expires_at, chatlock_threads.window_ends_at, chatlock_threads.lease_ms, chatlock_threads.beat, chatlock_threads.last_seq, chatlock_threads.fetched_seq, chatlock_threads.done_seq, chatlock_threads.holes, chatlock_threads.attempts, chatlock_threads.stalls, chatlock_threads.not_before, chatlock_threads.quiet_until, chatlock_threads.cancel_token, chatlock_threads.awaiting, chatlock_threads.priority, chatlock_threads.created_at, chatlock_threads.cancel_until, chatlock_threads.cancel_queued, chatlock_threads.cancel_upto, chatlock_threads.interrupts, chatlock_threads.awaiting_rule
FROM chatlock_threads ORDER BY chatlock_threads.tenant, chatlock_threads.thread_id;

-- transfer.read_turns
SELECT chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation, chatlock_turns.token, chatlock_turns.claim_id, chatlock_turns.owner, chatlock_turns.agent, chatlock_turns.from_seq, chatlock_turns.to_seq, chatlock_turns.state, chatlock_turns.reply, chatlock_turns.error, chatlock_turns.mark, chatlock_turns.started_at, chatlock_turns.ended_at, chatlock_turns.late_ended_at, chatlock_turns.question
FROM chatlock_turns ORDER BY chatlock_turns.tenant, chatlock_turns.thread_id, chatlock_turns.incarnation, chatlock_turns.token;

-- transfer.read_windows
SELECT chatlock_windows.agent, chatlock_windows.day, chatlock_windows.longest_ms, chatlock_windows.runs, chatlock_windows.total_ms
FROM chatlock_windows ORDER BY chatlock_windows.agent, chatlock_windows.day;

-- transfer.running
SELECT chatlock_turns.tenant, chatlock_turns.thread_id
FROM chatlock_turns
WHERE chatlock_turns.state = 'running';

-- transfer.unmark
DELETE FROM chatlock_meta
WHERE chatlock_meta.name IN ('moved_at', 'export_id');

-- transfer.write_audit
INSERT INTO chatlock_audit (at, tenant, thread_id, incarnation, token, action, actor, reason)
VALUES (:b_at::BIGINT, :b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_incarnation::BIGINT, :b_token::BIGINT, :b_action::VARCHAR, :b_actor::VARCHAR, :b_reason::VARCHAR)
RETURNING chatlock_audit.audit_id;

-- transfer.write_due
INSERT INTO chatlock_due (tenant, thread_id, due_at, priority, dispatched_until)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_due_at::BIGINT, :b_priority::INTEGER, :b_dispatched_until::BIGINT);

-- transfer.write_fences
INSERT INTO chatlock_fences (tenant, thread_id, resource, highest)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_resource::VARCHAR, :b_highest::BIGINT);

-- transfer.write_intents
INSERT INTO chatlock_intents (tenant, thread_id, incarnation, token, name, agent, step_key, payload, state, attempts, lease_token, leased_until, not_before, expires_at, created_at, ended_at, error)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_incarnation::BIGINT, :b_token::BIGINT, :b_name::VARCHAR, :b_agent::VARCHAR, :b_step_key::VARCHAR, :b_payload::VARCHAR, :b_state::VARCHAR, :b_attempts::INTEGER, :b_lease_token::BIGINT, :b_leased_until::BIGINT, :b_not_before::BIGINT, :b_expires_at::BIGINT, :b_created_at::BIGINT, :b_ended_at::BIGINT, :b_error::VARCHAR);

-- transfer.write_messages
INSERT INTO chatlock_messages (tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, disposition, turn_token, policy, received_at, expire_ms, redrive_of, trace, superseded_by)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_incarnation::BIGINT, :b_seq::BIGINT, :b_message_id::VARCHAR, :b_payload::VARCHAR, :b_payload_hash::VARCHAR, :b_disposition::VARCHAR, :b_turn_token::BIGINT, :b_policy::VARCHAR, :b_received_at::BIGINT, :b_expire_ms::BIGINT, :b_redrive_of::VARCHAR, :b_trace::VARCHAR, :b_superseded_by::BIGINT);

-- transfer.write_meta
INSERT INTO chatlock_meta (name, value)
VALUES (:b_name::VARCHAR, :b_value::BIGINT)
ON CONFLICT (name) DO UPDATE
SET value = excluded.value;

-- transfer.write_sessions
INSERT INTO chatlock_sessions (tenant, thread_id, name, value, token)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_name::VARCHAR, :b_value::VARCHAR, :b_token::BIGINT);

-- transfer.write_threads
INSERT INTO chatlock_threads (tenant, thread_id, incarnation, agent, status, token, claim_id, owner, claimed_at, expires_at, window_ends_at, lease_ms, beat, last_seq, fetched_seq, done_seq, holes, attempts, stalls, not_before, quiet_until, cancel_token, awaiting, priority, created_at, cancel_until, cancel_queued, cancel_upto, interrupts, awaiting_rule)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_incarnation::BIGINT, :b_agent::VARCHAR, :b_status::VARCHAR, :b_token::BIGINT, :b_claim_id::VARCHAR, :b_owner::VARCHAR, :b_claimed_at::BIGINT, :b_expires_at::BIGINT, :b_window_ends_at::BIGINT, :b_lease_ms::BIGINT, :b_beat::BIGINT, :b_last_seq::BIGINT, :b_fetched_seq::BIGINT, :b_done_seq::BIGINT, :b_holes::BIGINT, :b_attempts::INTEGER, :b_stalls::INTEGER, :b_not_before::BIGINT, :b_quiet_until::BIGINT, :b_cancel_token::BIGINT, :b_awaiting::VARCHAR, :b_priority::INTEGER, :b_created_at::BIGINT, :b_cancel_until::BIGINT, :b_cancel_queued::VARCHAR, :b_cancel_upto::BIGINT, :b_interrupts::INTEGER, :b_awaiting_rule::VARCHAR);

-- transfer.write_turns
INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, to_seq, state, reply, error, mark, started_at, ended_at, late_ended_at, question)
VALUES (:b_tenant::VARCHAR, :b_thread_id::VARCHAR, :b_incarnation::BIGINT, :b_token::BIGINT, :b_claim_id::VARCHAR, :b_owner::VARCHAR, :b_agent::VARCHAR, :b_from_seq::BIGINT, :b_to_seq::BIGINT, :b_state::VARCHAR, :b_reply::VARCHAR, :b_error::VARCHAR, :b_mark::VARCHAR, :b_started_at::BIGINT, :b_ended_at::BIGINT, :b_late_ended_at::BIGINT, :b_question::VARCHAR);

-- transfer.write_windows
INSERT INTO chatlock_windows (agent, day, longest_ms, runs, total_ms)
VALUES (:b_agent::VARCHAR, :b_day::BIGINT, :b_longest_ms::BIGINT, :b_runs::BIGINT, :b_total_ms::BIGINT);
