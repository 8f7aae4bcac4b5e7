"""The hot path: S1 (submit + claim + first fetch) and S2 (finish) for the uncontended case only.

On PostgreSQL each is one statement and, in autocommit, one commit; on SQLite one short transaction.  They run as
fixed text on the driver's cursor.  Uncontended means: idle, nothing pending, no failure, no holes, quiet_until
passed, nothing awaited.  Where nothing is to be claimed S1 stores the message; every other case is left to the
locked operations.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from chatlock.dialects import CLOCK_SQLITE, STABLE_PG, WALL_PG
from chatlock.inputs import from_json
from chatlock.ops.base import SILENT, Claim, Message, named
from chatlock.ops.claim import Granted, Request
from chatlock.ops.finish import Finish, Finished
from chatlock.ops.inspect import TYPICAL_DAYS, eta_ms
from chatlock.ops.submit import Submission, Submitted, submission_values
from chatlock.ops.windows import DAY_MS
from chatlock.policies import POLICIES
from chatlock.protocol import TOKENS_PER_EPOCH, Parked, Queued, Status

FIRST_TOKEN = f"COALESCE((SELECT value FROM chatlock_meta WHERE name='epoch'), 0) * {TOKENS_PER_EPOCH}"
INIT_POSTGRESQL = f"""
INSERT INTO chatlock_threads(tenant, thread_id, agent, token, created_at)
VALUES (%(tenant)s, %(thread)s, %(agent)s, {FIRST_TOKEN}, {WALL_PG})
ON CONFLICT DO NOTHING"""

# as "windows.typical", only for whom no claim is granted
_TYPICAL = """
SELECT sum(total_ms)/sum(runs) FROM chatlock_windows WHERE agent={agent} AND day>{now}/{day_ms}-{days} AND total_ms>0"""
_LATELY = {"day_ms": DAY_MS, "days": TYPICAL_DAYS}
_TYPICAL_POSTGRESQL = _TYPICAL.format(agent="%(agent)s", now=STABLE_PG, **_LATELY)
_TYPICAL_SQLITE = _TYPICAL.format(agent=":agent", now=CLOCK_SQLITE, **_LATELY)

# every CTE depends by data on `l`, which locks; the clock is read in `i`, after the wait.  `u` takes the seqs of `l`:
# PostgreSQL checks its constraints first on the row as it was before the wait, and that may be of an earlier life.  No row: no such thread, or
# another isolation level.  A row without seq, and nothing written: a known message_id, a deleted thread, an open
# question, a refusing policy, or an idle thread with a queue that the caller may claim.
S1_POSTGRESQL = f"""
WITH l AS MATERIALIZED (
  SELECT incarnation, status, token, last_seq, fetched_seq, done_seq, holes, attempts, stalls, not_before, quiet_until, awaiting,
         priority, claimed_at
    FROM chatlock_threads
   WHERE tenant=%(tenant)s AND thread_id=%(thread)s AND current_setting('transaction_isolation')='read committed'
     FOR NO KEY UPDATE),
i AS (
  INSERT INTO chatlock_messages(tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, policy, trace, received_at)
  SELECT %(tenant)s, %(thread)s, l.incarnation, l.last_seq+1, %(message_id)s, %(payload)s, %(payload_hash)s, %(policy)s, %(trace)s,
         {WALL_PG}
    FROM l
   WHERE l.status <> 'deleted' AND l.awaiting IS NULL
     AND CASE WHEN l.status='idle' AND l.last_seq=l.done_seq THEN true ELSE %(store)s AND (l.status <> 'idle' OR NOT %(may_claim)s) END
  ON CONFLICT (tenant, message_id, thread_id, incarnation) DO NOTHING
  RETURNING seq, received_at),
g AS MATERIALIZED (
  SELECT i.seq, i.received_at AS now,
         (%(may_claim)s AND l.status='idle' AND l.last_seq=l.done_seq AND l.attempts=0 AND l.stalls=0
          AND l.not_before<=i.received_at AND l.quiet_until<=i.received_at) AS go
    FROM l, i),
u AS (
  UPDATE chatlock_threads t SET last_seq=g.seq, agent=%(agent)s,
         priority    = CASE WHEN l.last_seq>l.done_seq THEN least(l.priority, %(priority)s) ELSE %(priority)s END,
         status      = CASE WHEN g.go THEN 'running' ELSE t.status END,
         token       = CASE WHEN g.go THEN t.token+1 ELSE t.token END,
         done_seq    = l.done_seq,
         holes       = l.holes,
         fetched_seq = CASE WHEN g.go THEN g.seq ELSE l.fetched_seq END,
         claim_id    = CASE WHEN g.go THEN %(claim_id)s ELSE t.claim_id END,
         owner       = CASE WHEN g.go THEN %(owner)s ELSE t.owner END,
         beat        = CASE WHEN g.go THEN 0 ELSE t.beat END,
         lease_ms    = CASE WHEN g.go THEN %(lease)s ELSE t.lease_ms END,
         claimed_at  = CASE WHEN g.go THEN g.now ELSE t.claimed_at END,
         window_ends_at = CASE WHEN g.go THEN g.now+%(window)s ELSE t.window_ends_at END,
         expires_at  = CASE WHEN g.go THEN g.now+least(%(lease)s,%(window)s) ELSE t.expires_at END
    FROM l, g WHERE t.tenant=%(tenant)s AND t.thread_id=%(thread)s
  RETURNING t.incarnation, t.token, t.status, t.done_seq, t.not_before, t.quiet_until, t.priority, g.go, g.now),
n AS (
  INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state, started_at)
  SELECT %(tenant)s, %(thread)s, u.incarnation, u.token, %(claim_id)s, %(owner)s, %(agent)s, u.done_seq, 'running', u.now
    FROM u WHERE u.go),
d AS (
  INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until)
  SELECT %(tenant)s, %(thread)s,
         greatest(u.now, u.quiet_until, CASE WHEN u.not_before<=u.now+%(backoff_max)s THEN u.not_before ELSE 0 END), u.priority, 0
    FROM u WHERE NOT u.go AND u.status='idle'
  ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0)
SELECT l.incarnation, l.status, g.seq, COALESCE(g.go, false), u.token, l.done_seq, l.holes, g.now, g.now-l.claimed_at,
       CASE WHEN NOT g.go THEN ({_TYPICAL_POSTGRESQL}) END
  FROM l LEFT JOIN g ON true LEFT JOIN u ON true
"""

# the divisions assert inside the statement that exactly the held messages and one turn were written; an error rolls
# all back
S2_POSTGRESQL = f"""
WITH l AS MATERIALIZED (
  SELECT last_seq, done_seq, priority, quiet_until, expires_at, window_ends_at FROM chatlock_threads
   WHERE tenant=%(tenant)s AND thread_id=%(thread)s AND incarnation=%(incarnation)s AND token=%(token)s AND status='running'
     AND done_seq=%(from_seq)s AND done_seq<%(upto)s AND %(upto)s<=fetched_seq AND holes=0 AND cancel_token IS NULL
     AND current_setting('transaction_isolation')='read committed'
     FOR NO KEY UPDATE),
m AS (
  UPDATE chatlock_messages x SET disposition='answered', turn_token=%(token)s FROM l
   WHERE x.tenant=%(tenant)s AND x.thread_id=%(thread)s AND x.incarnation=%(incarnation)s AND x.seq>l.done_seq AND x.seq<=%(upto)s
     AND x.disposition='pending' RETURNING x.seq),
r AS (
  UPDATE chatlock_turns x SET state='done', from_seq=l.done_seq, to_seq=%(upto)s, reply=%(reply)s, ended_at={WALL_PG},
         error=CASE WHEN l.expires_at<{WALL_PG} AND l.expires_at<l.window_ends_at THEN '{SILENT}' ELSE x.error END FROM l
   WHERE x.tenant=%(tenant)s AND x.thread_id=%(thread)s AND x.incarnation=%(incarnation)s AND x.token=%(token)s
     AND x.state='running' RETURNING x.ended_at),
u AS (
  UPDATE chatlock_threads t SET status='idle', done_seq=%(upto)s, attempts=0, stalls=0, not_before=0, interrupts=0,
         claim_id=NULL, owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL
    FROM l WHERE t.tenant=%(tenant)s AND t.thread_id=%(thread)s AND t.token=%(token)s RETURNING t.last_seq),
d AS (
  INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until)
  SELECT %(tenant)s, %(thread)s, greatest({WALL_PG}, l.quiet_until), l.priority, 0 FROM u, l WHERE u.last_seq>%(upto)s
  ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0)
SELECT u.last_seq, 1/((SELECT count(*) FROM m)=%(held)s)::int, 1/((SELECT count(*) FROM r)=1)::int FROM l, u
"""

_INIT = f"""
INSERT INTO chatlock_threads(tenant, thread_id, agent, token, created_at)
VALUES(:tenant, :thread, :agent, {FIRST_TOKEN}, {CLOCK_SQLITE})"""
_READ = f"""
SELECT incarnation, status, token, last_seq, done_seq, holes, attempts, stalls, not_before, quiet_until, awaiting, priority, claimed_at,
       {CLOCK_SQLITE}
  FROM chatlock_threads WHERE tenant=:tenant AND thread_id=:thread"""
_STORE = """
INSERT INTO chatlock_messages(tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, policy, trace, received_at)
VALUES(:tenant, :thread, :incarnation, :seq, :message_id, :payload, :payload_hash, :policy, :trace, :now)
ON CONFLICT (tenant, message_id, thread_id, incarnation) DO NOTHING RETURNING seq"""
_CLAIM = """
UPDATE chatlock_threads SET last_seq=:seq, agent=:agent, priority=:priority, status='running', token=token+1, fetched_seq=:seq, claim_id=:claim_id,
       owner=:owner, beat=0, lease_ms=:lease, claimed_at=:now, window_ends_at=:now+:window, expires_at=:now+min(:lease,:window)
 WHERE tenant=:tenant AND thread_id=:thread AND status='idle' AND token=:token"""
_START = """
INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, owner, agent, from_seq, state, started_at)
VALUES(:tenant, :thread, :incarnation, :token+1, :claim_id, :owner, :agent, :done_seq, 'running', :now)"""
_ADVANCE = "UPDATE chatlock_threads SET last_seq=:seq, agent=:agent, priority=:priority WHERE tenant=:tenant AND thread_id=:thread"
_DUE = """
INSERT INTO chatlock_due(tenant, thread_id, due_at, priority, dispatched_until) VALUES(:tenant, :thread, :due_at, :priority, 0)
ON CONFLICT (tenant, thread_id) DO UPDATE SET due_at=excluded.due_at, priority=excluded.priority, dispatched_until=0"""
S1_SQLITE = (_READ, _STORE, _CLAIM, _START, _ADVANCE, _DUE, _TYPICAL_SQLITE)

_HELD = f"""
SELECT last_seq, priority, quiet_until, {CLOCK_SQLITE}, expires_at<{CLOCK_SQLITE} AND expires_at<window_ends_at
  FROM chatlock_threads WHERE tenant=:tenant AND thread_id=:thread AND incarnation=:incarnation AND token=:token AND status='running'
   AND done_seq=:from_seq AND done_seq<:upto AND :upto<=fetched_seq AND holes=0 AND cancel_token IS NULL"""
_ANSWER = """
UPDATE chatlock_messages SET disposition='answered', turn_token=:token
 WHERE tenant=:tenant AND thread_id=:thread AND incarnation=:incarnation AND seq>:from_seq AND seq<=:upto AND disposition='pending'
RETURNING seq"""
_END = f"""
UPDATE chatlock_turns SET state='done', to_seq=:upto, reply=:reply, ended_at=:now, error=CASE WHEN :silent THEN '{SILENT}' ELSE error END
 WHERE tenant=:tenant AND thread_id=:thread AND incarnation=:incarnation AND token=:token AND state='running' RETURNING token"""
_IDLE = """
UPDATE chatlock_threads SET status='idle', done_seq=:upto, attempts=0, stalls=0, not_before=0, interrupts=0, claim_id=NULL,
       owner=NULL, claimed_at=NULL, expires_at=NULL, window_ends_at=NULL, lease_ms=NULL
 WHERE tenant=:tenant AND thread_id=:thread AND token=:token"""
S2_SQLITE = (_HELD, _ANSWER, _END, _IDLE, _DUE)

named("hot.init", {"postgresql": INIT_POSTGRESQL, "sqlite": _INIT})
named("hot.submit", {"postgresql": S1_POSTGRESQL, "sqlite": ";\n".join(S1_SQLITE)})
named("hot.finish", {"postgresql": S2_POSTGRESQL, "sqlite": ";\n".join(S2_SQLITE)})


@dataclass(frozen=True)
class _Stored:
    """What S1 saw and wrote; seq None: nothing was written."""

    incarnation: int
    status: str
    seq: int | None
    claimed: bool
    token: int | None
    done_seq: int
    holes: int
    now: int | None
    since_ms: int | None = None
    typical_ms: Any = None


def hot_submit(cursor: Any, submission: Submission, request: Request | None, backoff_max_ms: int) -> Submitted | None:
    """S1 on the driver's cursor.  None: not the hot case, no message was written; the locked submit decides."""
    values = submission_values(submission) | {
        "store": POLICIES[submission.policy].store == "always",
        "may_claim": request is not None,
        "claim_id": request.claim_id if request else None,
        "owner": request.owner if request else None,
        "lease": request.lease_ms if request else 0,
        "window": request.window_ms if request else 0,
        "backoff_max": backoff_max_ms,
    }
    stored = _s1_sqlite(cursor, values) if isinstance(cursor, sqlite3.Cursor) else _s1_postgresql(cursor, values)
    if stored is None or stored.seq is None:
        return None
    ids: dict[str, Any] = {
        "message_id": submission.message_id,
        "seq": stored.seq,
        "incarnation": stored.incarnation,
    }
    if stored.claimed and request is not None and stored.token is not None:
        claim = Claim(
            key=submission.key,
            incarnation=stored.incarnation,
            token=stored.token,
            claim_id=request.claim_id,
            from_seq=stored.done_seq,
            agent=submission.agent,
            lease_ms=request.lease_ms,
            asked_at=request.asked_at,
        )
        payload, received_at = from_json(submission.payload), stored.now or 0
        message = Message(stored.seq, submission.message_id, payload, received_at, trace=submission.trace)
        claimed = Queued(**ids, position=0, turn=stored.token)
        return Submitted(claimed, stored.incarnation, stored.seq, Granted(claim, (message,)))
    if stored.status == Status.PARKED:
        return Submitted(Parked(**ids), stored.incarnation, stored.seq)
    position = max(0, stored.seq - 1 - stored.done_seq - stored.holes)
    tells = stored.status == Status.RUNNING and POLICIES[submission.policy].turn == "tell"
    affected = stored.token if tells else None
    eta = eta_ms(stored.typical_ms, stored.since_ms, in_turn=False)
    outcome = Queued(**ids, position=position, eta_ms=eta)
    return Submitted(outcome, stored.incarnation, stored.seq, affected=affected)


def _s1_postgresql(cursor: Any, values: dict[str, Any]) -> _Stored | None:
    cursor.execute(S1_POSTGRESQL, values)
    row = cursor.fetchone()
    if row is None:  # a thread's first message: the row, and S1 again
        cursor.execute(INIT_POSTGRESQL, values)
        cursor.execute(S1_POSTGRESQL, values)
        row = cursor.fetchone()
    return None if row is None else _Stored(*row)


def _s1_sqlite(cursor: sqlite3.Cursor, values: dict[str, Any]) -> _Stored:
    row = cursor.execute(_READ, values).fetchone()
    if row is None:
        cursor.execute(_INIT, values)
        row = cursor.execute(_READ, values).fetchone()
    (
        incarnation,
        status,
        token,
        last,
        done,
        holes,
        attempts,
        stalls,
        not_before,
        quiet,
        awaiting,
        priority,
        claimed,
        now,
    ) = row
    free = status == "idle" and last == done
    nothing = _Stored(incarnation, status, None, False, None, done, holes, None)
    claimable = status == "idle" and values["may_claim"]
    if status == "deleted" or awaiting is not None or not (free or (values["store"] and not claimable)):
        return nothing
    values |= {
        "incarnation": incarnation,
        "seq": last + 1,
        "now": now,
        "token": token,
        "done_seq": done,
        "priority": min(priority, values["priority"]) if last > done else values["priority"],
    }
    if not cursor.execute(_STORE, values).fetchall():
        return nothing
    go = values["may_claim"] and free and attempts == 0 and stalls == 0 and max(not_before, quiet) <= now
    typical = None
    if go:
        cursor.execute(_CLAIM, values)
        cursor.execute(_START, values)
    else:
        typical = cursor.execute(_TYPICAL_SQLITE, values).fetchone()[0]
        cursor.execute(_ADVANCE, values)
        if status == "idle":
            backoff = not_before if not_before <= now + values["backoff_max"] else 0
            cursor.execute(_DUE, values | {"due_at": max(now, quiet, backoff)})
    since = None if claimed is None else now - claimed
    return _Stored(incarnation, status, last + 1, go, token + 1 if go else token, done, holes, now, since, typical)


class NotAsHeld(Exception):
    """S2 found other messages than the turn holds; its transaction must be rolled back, and the locked finish
    decides.
    """


def hot_finish(cursor: Any, what: Finish) -> Finished | None:
    """S2 on the driver's cursor.  None: not the hot case, nothing was written; the locked finish decides."""
    claim = what.claim
    values = {
        "tenant": claim.key.tenant,
        "thread": claim.key.thread,
        "incarnation": claim.incarnation,
        "token": claim.token,
        "from_seq": claim.from_seq,
        "upto": what.upto,
        "held": what.held,
        "reply": what.reply,
    }
    if isinstance(cursor, sqlite3.Cursor):
        return _s2_sqlite(cursor, values)
    try:
        cursor.execute(S2_POSTGRESQL, values)
    except Exception as error:
        if getattr(error, "sqlstate", None) == "22012":
            raise NotAsHeld from None
        raise
    row = cursor.fetchone()
    return None if row is None else Finished(left=row[0] > what.upto)


def _s2_sqlite(cursor: sqlite3.Cursor, values: dict[str, Any]) -> Finished | None:
    row = cursor.execute(_HELD, values).fetchone()
    if row is None:
        return None
    last, priority, quiet, now, silent = row
    values |= {"now": now, "silent": silent}
    answered = cursor.execute(_ANSWER, values).fetchall()
    ended = cursor.execute(_END, values).fetchall()
    if (len(answered), len(ended)) != (values["held"], 1):
        raise NotAsHeld
    cursor.execute(_IDLE, values)
    if last > values["upto"]:
        cursor.execute(_DUE, values | {"due_at": max(now, quiet), "priority": priority})
    return Finished(left=last > values["upto"])
