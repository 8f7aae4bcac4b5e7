-- intents.again
UPDATE chatlock_intents
SET state='pending', attempts=0, not_before=0, ended_at=NULL
WHERE chatlock_intents.tenant = :b_tenant
AND chatlock_intents.thread_id = :b_thread
AND chatlock_intents.incarnation = :b_incarnation
AND chatlock_intents.token = :b_token
AND chatlock_intents.name = :b_name
AND chatlock_intents.state = 'failed'
RETURNING token;

-- intents.answered_ids
SELECT chatlock_messages.message_id, chatlock_turns.question
FROM chatlock_messages JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_messages.tenant = :b_tenant
AND chatlock_messages.thread_id = :b_thread
AND chatlock_messages.incarnation = :b_incarnation
AND chatlock_messages.turn_token = :b_token
AND chatlock_messages.disposition = 'answered' ORDER BY chatlock_messages.seq;

-- intents.cancel
UPDATE chatlock_intents
SET state='cancelled', ended_at=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)
WHERE chatlock_intents.tenant = :b_tenant
AND chatlock_intents.thread_id = :b_thread
AND chatlock_intents.state = 'pending';

-- intents.end
UPDATE chatlock_intents
SET state=:b_new_state, leased_until=NULL, ended_at=CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER), error=:b_error
WHERE chatlock_intents.tenant = :b_tenant
AND chatlock_intents.thread_id = :b_thread
AND chatlock_intents.incarnation = :b_incarnation
AND chatlock_intents.token = :b_token
AND chatlock_intents.name = :b_name
AND chatlock_intents.state = 'leased'
AND chatlock_intents.lease_token = :b_lease_token
RETURNING token;

-- intents.insert
INSERT INTO chatlock_intents (tenant, thread_id, incarnation, token, name, agent, step_key, payload, expires_at, created_at)
VALUES (:b_tenant, :b_thread, :b_incarnation, :b_token, :b_name, :b_agent, :b_step_key, :b_payload, (CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_expire_ms), CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER));

-- intents.lease
UPDATE chatlock_intents
SET state='leased', attempts=(chatlock_intents.attempts + 1), lease_token=(chatlock_intents.lease_token + 1), leased_until=(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 60000)
WHERE chatlock_intents.tenant = :b_tenant
AND chatlock_intents.thread_id = :b_thread
AND chatlock_intents.incarnation = :b_incarnation
AND chatlock_intents.token = :b_token
AND chatlock_intents.name = :b_name
AND chatlock_intents.lease_token = :b_lease_token
AND (chatlock_intents.state = 'pending'
AND (chatlock_intents.not_before <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_intents.not_before > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 300000) OR chatlock_intents.state = 'leased'
AND (chatlock_intents.leased_until < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_intents.leased_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 60000))
RETURNING lease_token, attempts, agent, step_key, payload, expires_at < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) AS expired;

-- intents.ready
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.lease_token
FROM chatlock_intents
WHERE (chatlock_intents.state = 'pending'
AND (chatlock_intents.not_before <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_intents.not_before > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 300000) OR chatlock_intents.state = 'leased'
AND (chatlock_intents.leased_until < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_intents.leased_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 60000))
AND chatlock_intents.agent IN (:b_agents)
AND NOT (EXISTS (SELECT *
FROM chatlock_intents AS earlier
WHERE earlier.tenant = chatlock_intents.tenant
AND earlier.thread_id = chatlock_intents.thread_id
AND earlier.state IN ('pending', 'leased')
AND (earlier.incarnation < chatlock_intents.incarnation OR earlier.incarnation = chatlock_intents.incarnation
AND earlier.token < chatlock_intents.token OR earlier.incarnation = chatlock_intents.incarnation
AND earlier.token = chatlock_intents.token
AND earlier.name < chatlock_intents.name))) ORDER BY chatlock_intents.not_before, chatlock_intents.created_at
 LIMIT :b_limit OFFSET 0;

-- intents.ready_of_anyone
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.lease_token
FROM chatlock_intents
WHERE (chatlock_intents.state = 'pending'
AND (chatlock_intents.not_before <= CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_intents.not_before > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 300000) OR chatlock_intents.state = 'leased'
AND (chatlock_intents.leased_until < CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) OR chatlock_intents.leased_until > CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + 60000))
AND NOT (EXISTS (SELECT *
FROM chatlock_intents AS earlier
WHERE earlier.tenant = chatlock_intents.tenant
AND earlier.thread_id = chatlock_intents.thread_id
AND earlier.state IN ('pending', 'leased')
AND (earlier.incarnation < chatlock_intents.incarnation OR earlier.incarnation = chatlock_intents.incarnation
AND earlier.token < chatlock_intents.token OR earlier.incarnation = chatlock_intents.incarnation
AND earlier.token = chatlock_intents.token
AND earlier.name < chatlock_intents.name))) ORDER BY chatlock_intents.not_before, chatlock_intents.created_at
 LIMIT :b_limit OFFSET 0;

-- intents.retry
UPDATE chatlock_intents
SET state='pending', leased_until=NULL, not_before=(CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER) + :b_delay), error=:b_error
WHERE chatlock_intents.tenant = :b_tenant
AND chatlock_intents.thread_id = :b_thread
AND chatlock_intents.incarnation = :b_incarnation
AND chatlock_intents.token = :b_token
AND chatlock_intents.name = :b_name
AND chatlock_intents.state = 'leased'
AND chatlock_intents.lease_token = :b_lease_token
RETURNING token;
