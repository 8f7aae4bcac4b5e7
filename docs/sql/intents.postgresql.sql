-- intents.again
UPDATE chatlock_intents
SET state='pending', attempts=0, not_before=0, ended_at=NULL
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.incarnation = :b_incarnation::BIGINT
AND chatlock_intents.token = :b_token::BIGINT
AND chatlock_intents.name = :b_name::VARCHAR
AND chatlock_intents.state = 'failed'
RETURNING chatlock_intents.token;

-- intents.answered_ids
SELECT chatlock_messages.message_id, chatlock_turns.question
FROM chatlock_messages JOIN chatlock_turns ON chatlock_turns.tenant = chatlock_messages.tenant
AND chatlock_turns.thread_id = chatlock_messages.thread_id
AND chatlock_turns.incarnation = chatlock_messages.incarnation
AND chatlock_turns.token = chatlock_messages.turn_token
WHERE chatlock_messages.tenant = :b_tenant::VARCHAR
AND chatlock_messages.thread_id = :b_thread::VARCHAR
AND chatlock_messages.incarnation = :b_incarnation::BIGINT
AND chatlock_messages.turn_token = :b_token::BIGINT
AND chatlock_messages.disposition = 'answered' ORDER BY chatlock_messages.seq;

-- intents.cancel
UPDATE chatlock_intents
SET state='cancelled', ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.state = 'pending';

-- intents.end
UPDATE chatlock_intents
SET state=:b_new_state::VARCHAR, leased_until=NULL, ended_at=(extract(epoch FROM clock_timestamp())*1000)::bigint, error=:b_error::VARCHAR
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.incarnation = :b_incarnation::BIGINT
AND chatlock_intents.token = :b_token::BIGINT
AND chatlock_intents.name = :b_name::VARCHAR
AND chatlock_intents.state = 'leased'
AND chatlock_intents.lease_token = :b_lease_token::BIGINT
RETURNING chatlock_intents.token;

-- intents.insert
INSERT INTO chatlock_intents (tenant, thread_id, incarnation, token, name, agent, step_key, payload, expires_at, created_at)
VALUES (:b_tenant::VARCHAR, :b_thread::VARCHAR, :b_incarnation::BIGINT, :b_token::BIGINT, :b_name::VARCHAR, :b_agent::VARCHAR, :b_step_key::VARCHAR, :b_payload::VARCHAR, ((extract(epoch FROM clock_timestamp())*1000)::bigint + :b_expire_ms::BIGINT), (extract(epoch FROM clock_timestamp())*1000)::bigint);

-- intents.lease
UPDATE chatlock_intents
SET state='leased', attempts=(chatlock_intents.attempts + 1), lease_token=(chatlock_intents.lease_token + 1), leased_until=((extract(epoch FROM clock_timestamp())*1000)::bigint + 60000)
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.incarnation = :b_incarnation::BIGINT
AND chatlock_intents.token = :b_token::BIGINT
AND chatlock_intents.name = :b_name::VARCHAR
AND chatlock_intents.lease_token = :b_lease_token::BIGINT
AND (chatlock_intents.state = 'pending'
AND (chatlock_intents.not_before <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_intents.not_before > (extract(epoch FROM statement_timestamp())*1000)::bigint + 300000) OR chatlock_intents.state = 'leased'
AND (chatlock_intents.leased_until < (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_intents.leased_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 60000))
RETURNING chatlock_intents.lease_token, chatlock_intents.attempts, chatlock_intents.agent, chatlock_intents.step_key, chatlock_intents.payload, chatlock_intents.expires_at < (extract(epoch FROM clock_timestamp())*1000)::bigint AS expired;

-- intents.ready
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.lease_token
FROM chatlock_intents
WHERE (chatlock_intents.state = 'pending'
AND (chatlock_intents.not_before <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_intents.not_before > (extract(epoch FROM statement_timestamp())*1000)::bigint + 300000) OR chatlock_intents.state = 'leased'
AND (chatlock_intents.leased_until < (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_intents.leased_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 60000))
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
 LIMIT :b_limit;

-- intents.ready_of_anyone
SELECT chatlock_intents.tenant, chatlock_intents.thread_id, chatlock_intents.incarnation, chatlock_intents.token, chatlock_intents.name, chatlock_intents.lease_token
FROM chatlock_intents
WHERE (chatlock_intents.state = 'pending'
AND (chatlock_intents.not_before <= (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_intents.not_before > (extract(epoch FROM statement_timestamp())*1000)::bigint + 300000) OR chatlock_intents.state = 'leased'
AND (chatlock_intents.leased_until < (extract(epoch FROM statement_timestamp())*1000)::bigint OR chatlock_intents.leased_until > (extract(epoch FROM statement_timestamp())*1000)::bigint + 60000))
AND NOT (EXISTS (SELECT *
FROM chatlock_intents AS earlier
WHERE earlier.tenant = chatlock_intents.tenant
AND earlier.thread_id = chatlock_intents.thread_id
AND earlier.state IN ('pending', 'leased')
AND (earlier.incarnation < chatlock_intents.incarnation OR earlier.incarnation = chatlock_intents.incarnation
AND earlier.token < chatlock_intents.token OR earlier.incarnation = chatlock_intents.incarnation
AND earlier.token = chatlock_intents.token
AND earlier.name < chatlock_intents.name))) ORDER BY chatlock_intents.not_before, chatlock_intents.created_at
 LIMIT :b_limit;

-- intents.retry
UPDATE chatlock_intents
SET state='pending', leased_until=NULL, not_before=((extract(epoch FROM clock_timestamp())*1000)::bigint + :b_delay::BIGINT), error=:b_error::VARCHAR
WHERE chatlock_intents.tenant = :b_tenant::VARCHAR
AND chatlock_intents.thread_id = :b_thread::VARCHAR
AND chatlock_intents.incarnation = :b_incarnation::BIGINT
AND chatlock_intents.token = :b_token::BIGINT
AND chatlock_intents.name = :b_name::VARCHAR
AND chatlock_intents.state = 'leased'
AND chatlock_intents.lease_token = :b_lease_token::BIGINT
RETURNING chatlock_intents.token;
