"""The words of the model: what a status, a disposition and a program counter are called, and what counts as wrong."""

from __future__ import annotations

from enum import StrEnum

# thread status
NONE, IDLE, RUN, PARK, DEL = 0, 1, 2, 3, 4
# message disposition
PENDING, ANSWERED, DEAD, OTHER = 0, 1, 2, 3  # OTHER: superseded/cancelled/expired

# what an open question does to new messages
HOLD, RUN_ON, CLOSE = 1, 2, 3

# actor program counters
S0 = 1  # submitter: about to run the submit transaction
POLL = 2  # poller: looking for a due thread
CL2 = 3  # (mutant) has read 'idle', about to write the claim
CHK2 = 4  # (mutant) waiter has checked its seq, about to claim
INS2 = 5  # (mutant) seq allocated, message not yet visible
INIT2 = 6  # (mutant) saw no thread row, about to insert it
SUBSCR = 7  # (mutant) checked, not yet subscribed to wake-ups
CLM1 = 8  # (mutant) claim statement ran and missed; message not inserted yet
WAIT = 9
EST = 10  # claimed; must establish the fence in the other store
FETCH = 11
FETCH2 = 12  # (mutant) messages selected, fetched_seq not yet written
READ = 13  # read the other store
WORK = 14  # handler runs: may fetch again; next: fenced write in the same DB
DBW2 = 15  # (mutant) fence checked, write not yet done
EXTW = 16  # write to the other store
EXTW2 = 17  # (mutant) fence checked there, write not yet done
FIN = 18  # finish or fail
HUNG = 21  # handler hung, heartbeat alive
QWORK = 22  # (rq) worker waiting for a job
AMB = 19  # finish sent, acknowledgement lost
DELIV = 20  # finish committed; hand the reply over
RECV = 23  # claim (or hand-off) committed with a ridden fetch; its answer has not reached the process
AMB2 = 24  # finish with hand-off sent, acknowledgement lost
PDEL = 25  # (mutant) poller saw a due row it need not serve, about to delete it without the lock
FINR = 26  # (mutant) finish has read last_seq without the lock
LATE = 27  # (mutant) claim made, due row of the backlog deleted in a later transaction
SEND = 28  # (rq) dispatch lease committed, about to send the job
LEA2 = 29  # (mutant) saw a due row without a dispatch lease, about to lease it
END = 30

RUNNING_PCS = frozenset((RECV, FINR, LATE, EST, FETCH, FETCH2, READ, WORK, DBW2, EXTW, EXTW2, FIN))

STATUS_NAME = {NONE: "none", IDLE: "idle", RUN: "running", PARK: "parked", DEL: "deleted"}
PC_NAME = {
    counter: name
    for name, counter in list(globals().items())[list(globals()).index("S0") :]
    if isinstance(counter, int)
}


class Breach(StrEnum):
    """Everything that the model can find wrong."""

    TOKEN_NOT_NEW = "token: a token was issued twice or went backwards"
    SECOND_INIT = "init: a second initialisation replaced a live incarnation"
    COMMIT_WITHOUT_CLAIM = "finish: a turn without a valid claim committed"
    RELEASED_ANOTHERS_CLAIM = "release: a stale worker released the claim of a live owner"
    ANSWERED_UNRECEIVED = "lost: finish marked a message answered that the turn never received"
    PASSED_UNCOMMITTED = "lost: done_seq passed a seq whose message commits later"
    PHANTOM_SEQ = "phantom: last_seq counts a message that does not exist"
    EMPTY_TURN_REPLIED = "double: a turn with no unanswered message replied"
    RESOLVED_TURN_REPLIED = "double: a turn whose messages were all resolved already replied"
    ANSWERED_TWICE = "double: a message was answered by two committed turns"
    RESOLVED_YET_ANSWERED = "disposition: told cancelled/superseded, yet the committed turn had it"
    RESOLVED_YET_DEAD = "disposition: a cancelled/superseded message was dead-lettered as well"
    DEAD_UNRECEIVED = "dead-letter: a message was dead-lettered that no turn ever received"
    DEAD_TOO_EARLY = "dead-letter: a message was dead-lettered before its own last attempt"
    TOLD_ANSWERED = "outcome: told 'already answered' of a message that no committed turn answered"
    TOLD_FAILED = "outcome: told 'failed' of a turn that had committed"
    REPLY_OF_A_LOSER = "reply: a reply was delivered by a turn that never committed"
    REPLY_NEVER_STORED = "reply: its turn reads as committed, but this turn did not commit"
    WRITE_AFTER_LOSS = "fence: a write was accepted after the claim was lost"
    WRITE_BEHIND_FENCE = "fence: a stale token wrote after a newer fence was established"
    LOST_UPDATE = "fence: a stale token wrote between the new holder's read and write"
    ENDLESS_RETRIES = "livelock: the token limit is reached with the message unresolved"
    DEAD_CLAIM_KEPT_ALIVE = "stuck: a stale worker's heartbeat keeps a dead owner's claim alive"
    NEVER_FINISHES = "stuck: a resolved message in the range makes every finish fail"
    S_ORDER = "invariant S: done_seq <= fetched_seq <= last_seq does not hold"
    TWO_HOLDERS = "invariant: two turns hold a valid claim"
    SEQ_WITHOUT_MESSAGE = "invariant: seq without a message"
    PASSED_PENDING = "invariant: done_seq passed a pending message"
    RESOLVED_ABOVE_DONE = "invariant: a message above done_seq is answered or dead"
    H_HEAD = "invariant H: the head of a waiting thread is not pending"
    D_DUE_ROW = "invariant D: an idle thread with pending work has no due row"
    TOKEN_ABOVE_LARGEST = "invariant: token above the largest issued"
    CLAIMED_WHILE_HELD = "question: a turn began while an open question held the thread"
    DECIDED_WHAT_IS_CLOSED = "question: a decision was stored for a question that is not open"
    SUBMITTER_WAITS = "stuck: a submitter waits for ever"
    CLAIMED_FOREVER = "stuck: the thread stays claimed for ever"
    MESSAGE_UNRESOLVED = "stuck: a message is never answered or dead-lettered"
    STOPPED_UNASKED = "stop: a turn was stopped that nobody had asked to stop"
    STOPPED_TOO_OFTEN = "stop: turns over one oldest message were interrupted more than K times"
    CANCELLED_UNASKED = "stop: a message was cancelled that came after the stop"
    LEASED_TWICE = "dispatch: a due thread was left to a second worker under the lease of the first"
    CYCLE = "liveness: a run need not end, states lie on or behind a cycle"


class Violation(Exception):
    """A rule of the protocol is broken in a reachable transition or state."""

    def __init__(self, breach: Breach):
        super().__init__(breach)
        self.breach = breach
