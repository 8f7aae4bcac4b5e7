"""Executable model of the chatlock protocol, for one thread.

The model is a transition system. One step of an actor is ONE database transaction, which is sound
because every transaction of chatlock locks the thread row first. The explorer therefore enumerates
every interleaving of transactions, crashes, expiries, lost acknowledgements, handler failures and
deletions within the budgets of a Config. There is no clock: a lease may run out at any time.

A *mutant* is the same model with one named rule weakened. Every mutant has to produce a violation,
otherwise the checks prove nothing. Where a mutant stands for a statement that lets others in
half-way, it splits one step into two.

A state is a `bytes` object; class Layout says what each byte means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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


class System(NamedTuple):
    """A transition system as the explorer sees it."""

    initial: bytes
    successors: Callable[[bytes], list[tuple[str, bytes, bool]]]  # (label, next state, is a fault)
    check: Callable[[bytes], None]  # raises Violation in a state that breaks an invariant
    rest_error: Callable[[bytes], Breach | None]  # what is wrong if nothing but faults can happen
    show: Callable[[bytes], str]


@dataclass(frozen=True)
class Config:
    """Who takes part, how often each fault may strike, and which features are in play."""

    name: str
    submitters: int = 2
    pollers: int = 1
    expire: int = 1  # false expiries: lease or window runs out under a LIVE owner
    crash: int = 1  # process kills, at any point
    fail: int = 0  # handler exceptions
    acklost: int = 0  # commit done, acknowledgement lost
    delete: int = 0  # thread deletions
    cancel: int = 0  # caller cancelled after the claim committed
    hang: int = 0  # handler hangs for ever while its heartbeat goes on
    lose: int = 0  # fail-over to a standby that lacks the last claim
    rq: bool = False  # dispatchers lease a due row and send a job; a worker takes it and claims (with due=True)
    dispatchers: int = 1  # of the pollers, with rq=True; the others are workers
    flush: int = 0  # Redis flushed (with rq=True)
    backoff: bool = False  # a thread that was charged does not start at once
    lapse: int = 0  # a dispatch lease lapses although its job is under way (with rq=True)
    max_stalls: int = 2  # failures before any message was fetched -> park
    poison: int = 0  # message number whose turn always kills its process
    max_attempts: int = 2
    retry: bool = True  # a crashed submitter may come back with the same id
    deadline: bool = False
    midfetch: bool = True
    nofetch: bool = False  # handler may finish without ever fetching
    extstore: bool = True
    notify_only: bool = False  # no periodic re-check: liveness rests on wake-ups
    due: bool = False  # poller sees only the due table
    lazy: bool = False  # a submit may store without claiming (debounce, nested, backoff)
    ride: bool = False  # first fetch rides in the claim's transaction
    handoff: int = 0  # finish of a poller returns the next batch
    midcancel: int = 0  # cancel / expire one pending message, anywhere in the range
    latest: bool = False  # submit supersedes what is pending and not handed out
    rollback: int = 0  # rollback policy: ends the turn, its messages are superseded
    park: int = 0  # admin park + resume
    suspend: int = 0  # a turn finishes with a question; the last submitter is the person who answers it
    awaiting: int = HOLD  # what the question does to new messages
    interrupt: int = 0  # the running turn is asked to stop, for the sake of a new message
    max_interrupts: int = 1  # over one oldest message
    stop: int = 0  # the running turn is asked to stop, and what is pending is cancelled
    mut: frozenset = frozenset()
    max_token: int = 15

    def with_mut(self, *names: str) -> Config:
        return replace(self, mut=frozenset(names))


class Layout:
    """Where each value of a state stands: the thread's row, its messages, ghosts (what only the
    checks know), what is left of each budget, then the actors."""

    def __init__(self, cfg: Config):
        n = 0

        def take(k=1):
            nonlocal n
            v = n
            n += k
            return v

        self.ST, self.INC, self.TOK, self.OWN = take(), take(), take(), take()
        self.LAST, self.FET, self.DONE, self.ATT = take(), take(), take(), take()
        self.maxseq = cfg.submitters + (2 if "dup_bumps_seq" in cfg.mut else 0)
        self.SM = take(self.maxseq + 1)  # message number at seq (1-based)
        self.MS = take(self.maxseq + 1)  # disposition at seq
        self.NA = take(self.maxseq + 1)  # ghost: failed claims that held this message
        self.XF, self.XV, self.XE = take(), take(), take()  # other store: fence, value; ghost
        self.MAXT = take()  # ghost: largest token ever issued
        self.COM = take(2)  # turns table: committed tokens (bit mask)
        self.FETC = take()  # ghost: bit m set once message m was handed to a turn
        self.BEX, self.BCR, self.BFA, self.BAK, self.BDE, self.BCA = (take() for _ in range(6))
        self.BHA, self.BLO, self.BFL = (take() for _ in range(3))
        self.STALL, self.SAW, self.BACK = take(), take(), take()
        self.Q, self.DISP, self.LOST, self.BLA = (take() for _ in range(4))  # jobs; a lease in force; ghost: job lost
        self.DUE, self.RODE, self.BHO, self.BMC, self.BRB, self.BPK = (take() for _ in range(6))
        self.CAN, self.INTR, self.CUP = take(), take(), take()  # cancel_token, interrupts, cancel_upto
        self.ASK = take(6)  # ghost: tokens that were asked to stop (bit mask)
        self.NIN = take(self.maxseq + 1)  # ghost: interrupts of turns over this oldest message
        self.NAMED = take()  # ghost: bit m set once a stop has named message m
        self.BIN, self.BST = take(), take()
        self.AW, self.ASKD, self.BSU = (take() for _ in range(3))  # open question; ghost: the incarnation that asked
        self.A = take(0)
        self.asz = 10
        self.nact = cfg.submitters + cfg.pollers
        take(self.asz * self.nact)
        self.size = n


# fields of an actor
PC, SEQ, SINC, TOK, RINC, UPTO, SEEN, NLOC, WAKE, HB = range(10)


def make(cfg: Config) -> System:
    """The transition system of one configuration."""
    L = Layout(cfg)
    ST, INC, DTOK, OWN = L.ST, L.INC, L.TOK, L.OWN
    LAST, FET, DONE, ATT, SM, MS = L.LAST, L.FET, L.DONE, L.ATT, L.SM, L.MS
    NAT = L.NA
    XF, XV, XE, MAXT, COM, FETC = L.XF, L.XV, L.XE, L.MAXT, L.COM, L.FETC
    BEX, BCR, BFA, BAK, BDE, BCA = L.BEX, L.BCR, L.BFA, L.BAK, L.BDE, L.BCA
    BHA, BLO, BFL, STALL, SAW, BACK = L.BHA, L.BLO, L.BFL, L.STALL, L.SAW, L.BACK
    Q, DISP, LOST, BLA = L.Q, L.DISP, L.LOST, L.BLA
    ASZ, NA, NS = L.asz, L.nact, cfg.submitters
    base = [L.A + i * ASZ for i in range(NA)]
    actors = [f"S{i + 1}" if i < NS else f"P{i - NS + 1}" for i in range(NA)]
    mut = cfg.mut
    assert mut <= set(MUTANTS), mut - set(MUTANTS)

    m_read_write = "claim_read_then_write" in mut
    m_fin_any = "finish_unconditional" in mut
    m_rel_any = "release_unconditional" in mut
    m_ans_fetched = "answered_on_fetched" in mut
    m_no_reset = "fetched_not_reset" in mut
    m_fetch_split = "fetch_select_then_update" in mut
    m_implicit = "finish_implicit_upto" in mut or m_no_reset or m_fetch_split
    m_reclaim_same = "fence_token_only" in mut
    m_no_est = "fence_not_established" in mut
    m_ext_split = "fence_check_then_write" in mut
    m_dbw_split = "fence_select_without_lock" in mut
    m_aba = "delete_resets_token" in mut
    m_chk_claim = "check_then_claim" in mut
    m_fail_only = "attempts_only_on_fail" in mut
    m_dup = "dup_bumps_seq" in mut
    m_seq_out = "seq_outside_lock" in mut
    m_ack = "ack_lost_means_failed" in mut
    m_orphan = "orphan_heartbeat" in mut
    m_hb_any = "heartbeat_unconditional" in mut
    m_dead_last = "dead_letter_to_last_seq" in mut
    m_dead_ans = "watermark_means_answered" in mut
    m_init = "init_select_then_insert" in mut
    m_early = "reply_before_finish" in mut
    m_sub_late = "check_then_subscribe" in mut
    m_claim_first = "claim_before_insert" in mut
    m_wake_one = "wake_one_no_recheck" in mut
    m_park_lost = "abort_forgets_message" in mut
    m_no_isolate = "dead_letter_whole_batch" in mut
    m_one_counter = "one_attempt_counter" in mut
    m_no_window = "no_window" in mut
    m_no_epoch = "failover_without_epoch" in mut
    m_dis_ever = "dispatch_without_lease" in mut
    m_dis_del = "dispatch_deletes_due" in mut
    m_dis_any = "lease_without_test" in mut
    m_dis_kept = "due_keeps_lease" in mut
    m_own = "own_turn_means_answered" in mut

    DUE, RODE, BHO, BMC, BRB, BPK = L.DUE, L.RODE, L.BHO, L.BMC, L.BRB, L.BPK
    m_due_fin = "due_not_in_finish" in mut
    m_due_chg = "due_not_in_reclaim" in mut
    m_due_res = "due_not_in_resume" in mut
    m_due_del = "due_deleted_without_lock" in mut
    m_due_last = "due_from_unlocked_last_seq" in mut
    m_due_late = "due_deleted_after_claim" in mut
    m_due_lazy = "due_not_in_lazy_submit" in mut
    m_due_can = "due_not_in_rollback" in mut
    m_ride_att = "ride_charges_attempt" in mut
    m_ho_same = "handoff_same_token" in mut
    m_mid_norm = "mid_done_not_advanced" in mut
    m_mid_fin = "mid_finish_no_skip" in mut
    m_mid_fet = "mid_cancel_of_fetched" in mut
    m_mid_att = "mid_attempts_kept" in mut
    m_mid_dead = "mid_dead_no_skip" in mut
    m_mid_sup = "latest_supersedes_fetched" in mut
    m_mid_cnt = "mid_finish_counts_rows" in mut
    m_head = "head_cancelled_before_fetch" in mut
    m_rb_req = "rollback_is_a_request" in mut

    CAN, INTR, CUP, ASK, NIN, NAMED, BIN, BST = L.CAN, L.INTR, L.CUP, L.ASK, L.NIN, L.NAMED, L.BIN, L.BST
    m_st_flag = "stop_is_a_flag" in mut
    m_st_any = "force_without_token" in mut
    m_st_charge = "force_charges" in mut
    m_st_due = "due_not_in_force" in mut
    m_st_often = "interrupts_without_end" in mut
    m_st_held = "stop_cancels_what_is_held" in mut
    m_st_later = "stop_cancels_what_comes_later" in mut

    def asked(n):
        """The running turn is asked to stop: the stop names its token."""
        return n[CAN] and (m_st_flag or n[CAN] == n[DTOK])

    def unasked(n):
        """The turn is over, and with it what it was asked."""
        if n[CUP] and asked(n):
            for q in range(n[DONE] + 1, (n[LAST] if m_st_later else n[CUP]) + 1):
                if n[MS + q] == PENDING:
                    if not (n[NAMED] >> n[SM + q]) & 1:
                        raise Violation(Breach.CANCELLED_UNASKED)
                    n[MS + q] = OTHER
        if not m_st_flag:
            n[CAN] = n[CUP] = 0

    def stopped(n):
        """The turn ends because it was asked to: released, uncharged."""
        t = n[DTOK]
        if not (n[ASK + (t >> 3)] >> (t & 7)) & 1:
            raise Violation(Breach.STOPPED_UNASKED)
        unasked(n)
        n[ST], n[OWN], n[RODE] = IDLE, 0, 0
        advance(n)
        settle(n, m_st_due)
        wake(n)

    AW, ASKD, BSU = L.AW, L.ASKD, L.BSU
    m_q_open = "answer_leaves_question_open" in mut
    m_q_any = "question_holds_nothing" in mut
    m_q_late = "answer_without_question" in mut
    m_q_del = "question_survives_delete" in mut
    m_q_due = "answer_without_due" in mut
    human = NS - 1 if cfg.suspend else NA

    def settle(n, skip=False):
        """Every transaction that may leave the thread idle with work upserts its due row."""
        if cfg.due and not skip and n[ST] == IDLE and n[LAST] > n[DONE] and n[AW] != HOLD:
            n[DUE] = 1
            if not m_dis_kept:
                n[DISP] = n[LOST] = 0

    def drop_due(n):
        n[DUE] = n[DISP] = n[LOST] = 0

    def lose_job(n):
        """What was sent comes to nothing: where a dispatch lease is in force, its end is all that helps."""
        n[LOST] = n[DISP]

    def advance(n, skip=False):
        """Invariant H: not running => done_seq == last_seq or message done_seq+1 is pending."""
        if skip:
            return
        d = n[DONE]
        while n[DONE] < n[LAST] and n[MS + n[DONE] + 1] != PENDING:
            n[DONE] += 1
        if n[DONE] != d:
            n[INTR] = 0
            n[FET] = max(n[FET], n[DONE])
            if not m_mid_att:
                n[ATT] = n[STALL] = n[BACK] = 0

    def init():
        s = bytearray(L.size)
        s[BEX], s[BCR], s[BFA] = cfg.expire, cfg.crash, cfg.fail
        s[BAK], s[BDE], s[BCA] = cfg.acklost, cfg.delete, cfg.cancel
        s[BHA], s[BLO], s[BFL], s[BLA] = cfg.hang, cfg.lose, cfg.flush, cfg.lapse
        s[BHO], s[BMC], s[BRB], s[BPK] = cfg.handoff, cfg.midcancel, cfg.rollback, cfg.park
        s[BSU] = cfg.suspend
        s[BIN], s[BST] = cfg.interrupt, cfg.stop
        for i in range(NA):
            s[base[i]] = S0 if i < NS else home(i)
        return bytes(s)

    def home(i):
        return QWORK if cfg.rq and i >= NS + cfg.dispatchers else POLL

    # ---- small functions over a mutable state n ------------------------------
    def owns(n, b):
        return n[ST] == RUN and n[DTOK] == n[b + TOK] and n[INC] == n[b + RINC]

    def create(n):
        if n[ST] not in (NONE, DEL):
            raise Violation(Breach.SECOND_INIT)
        n[INC] += 1
        n[ST] = IDLE
        n[LAST] = n[FET] = n[DONE] = n[ATT] = n[STALL] = n[INTR] = n[BACK] = 0

    def reset_runner(n, b):
        n[b + TOK] = n[b + RINC] = n[b + UPTO] = n[b + SEEN] = n[b + NLOC] = 0

    def to_end(n, i, outcome):
        b = base[i]
        if i >= NS:
            reset_runner(n, b)
            n[b] = home(i)
            return
        sq, inc = n[b + SEQ], n[b + SINC]
        same = inc == n[INC] and n[ST] not in (NONE, DEL)
        answered = sq and n[SM + sq] == i + 1 and n[MS + sq] == ANSWERED
        if outcome == "answered" and same and not answered:
            raise Violation(Breach.TOLD_ANSWERED)
        if outcome == "failed" and same and n[MS + sq] == ANSWERED:
            raise Violation(Breach.TOLD_FAILED)
        for f in range(ASZ):
            n[b + f] = 0
        n[b] = END

    def abort(n, i):
        """Lost or failed turn: the poller goes on, a submitter waits on."""
        b = base[i]
        reset_runner(n, b)
        if i >= NS:
            n[b] = home(i)
        elif m_park_lost:
            to_end(n, i, "failed")
        else:
            n[b] = WAIT
            n[b + WAKE] = 1 if not m_wake_one else 0

    def wake(n):
        """A due idle thread exists: wake waiters that are subscribed."""
        if not cfg.notify_only:
            return
        for i in range(NS):
            if n[base[i]] == WAIT and not n[base[i] + WAKE]:
                n[base[i] + WAKE] = 1
                if m_wake_one:
                    return

    def claim(n, i, tok=None):
        b = base[i]
        if n[AW] == HOLD:
            raise Violation(Breach.CLAIMED_WHILE_HELD)
        if tok is None:
            tok = n[DTOK] + 1
        n[ST], n[DTOK], n[OWN] = RUN, tok, i + 1
        if tok <= n[MAXT]:
            raise Violation(Breach.TOKEN_NOT_NEW)
        if tok > cfg.max_token:
            raise Violation(Breach.ENDLESS_RETRIES)
        n[MAXT] = tok
        if not m_no_reset:
            n[FET] = n[DONE]
        n[b + TOK], n[b + RINC] = tok, n[INC]
        n[b + UPTO] = n[DONE]
        n[b + SEEN] = n[b + NLOC] = n[b + WAKE] = 0
        n[b] = EST if cfg.extstore and not m_no_est else FETCH
        n[RODE] = 0
        if cfg.ride and (m_ride_att or n[ATT] + n[STALL] == 0):
            n[FET] = n[b + UPTO] = fetch_limit(n)
            n[RODE] = 1
            n[b] = RECV
        elif m_due_late and n[DUE] and i < NS:
            n[b] = LATE

    def try_claim(n, i, label, out_emit):
        """Claim; also the branch in which a fail-over loses the claim."""
        m = bytearray(n)
        claim(n, i)
        out_emit(label, n)
        if n[BLO]:
            # acknowledged to the actor, then the primary dies; the standby
            # does not have it.  Remedy: fail-over bumps the token epoch.
            b = base[i]
            for f in range(ASZ):
                m[b + f] = n[b + f]
            m[BLO] -= 1
            if not m_no_epoch:
                m[DTOK] = n[DTOK] + 1
                m[MAXT] = m[DTOK]
            else:
                m[MAXT] = n[MAXT]
            out_emit(label + "; FAIL-OVER loses this commit", m, True)

    def fetch_limit(n):
        # the last attempt is made with the oldest message alone
        if not m_no_isolate and n[ATT] + 1 >= cfg.max_attempts:
            return n[DONE] + 1
        return n[LAST]

    def waits(n):
        return n[ST] == IDLE and n[LAST] > n[DONE] and (n[AW] != HOLD or m_q_any)

    def claimable(n, seq=0):
        return waits(n) and not n[BACK] and (not seq or seq > n[DONE])

    def hand_out(n, b, lo, hi):
        for q in range(lo + 1, hi + 1):
            if n[SM + q] and n[MS + q] == PENDING:
                n[b + SEEN] |= 1 << n[SM + q]  # by message, not by seq: survives delete + recreate
                n[FETC] |= 1 << n[SM + q]

    def dead_letter(n, upto):
        for q in range(n[DONE] + 1, upto + 1):
            if n[SM + q] and not (n[FETC] >> n[SM + q]) & 1:
                raise Violation(Breach.DEAD_UNRECEIVED)
            if n[MS + q] == OTHER:
                raise Violation(Breach.RESOLVED_YET_DEAD)
            if n[NAT + q] < cfg.max_attempts:
                raise Violation(Breach.DEAD_TOO_EARLY)
            n[MS + q] = DEAD
        n[DONE] = upto
        n[ATT] = n[STALL] = n[INTR] = 0
        n[ST] = IDLE

    def charge(n, reported=False):
        """The claim ended without an answer; count it against the head message,
        or, when nothing had been fetched, against the thread."""
        n[OWN] = 0
        n[ST], n[BACK] = IDLE, cfg.backoff
        for q in range(n[DONE] + 1, n[FET] + 1):
            n[NAT + q] = min(n[NAT + q] + 1, cfg.max_attempts)
        rode, n[RODE] = n[RODE], 0
        if (n[FET] > n[DONE] and (reported or not rode or m_ride_att)) or m_one_counter:
            n[ATT] += 1
            if n[ATT] >= cfg.max_attempts:
                if m_dead_last:
                    dead_letter(n, n[LAST])
                elif m_no_isolate:
                    dead_letter(n, max(n[FET], n[DONE] + 1))
                else:
                    dead_letter(n, n[DONE] + 1)
        else:
            n[STALL] += 1
            if n[STALL] >= cfg.max_stalls:
                n[ST] = PARK
        done = n[DONE]
        unasked(n)
        advance(n, m_mid_dead)
        if n[DONE] > done:  # a new head starts afresh
            n[ST] = IDLE
        settle(n, m_due_chg and not reported)
        wake(n)

    def commit(n, i, asking=0):
        """The finish transaction took effect for actor i.  asking: with a question that stays open."""
        b = base[i]
        if not owns(n, b):
            raise Violation(Breach.COMMIT_WITHOUT_CLAIM)
        upto = n[FET] if m_implicit else n[b + UPTO]
        if upto <= n[DONE]:
            raise Violation(Breach.EMPTY_TURN_REPLIED)
        if (
            not m_seq_out
            and not m_dup
            and all(n[MS + q] != PENDING for q in range(n[DONE] + 1, upto + 1))
            and all(n[MS + q] == OTHER for q in range(n[DONE] + 1, upto + 1))
        ):
            raise Violation(Breach.RESOLVED_TURN_REPLIED)
        for q in range(n[DONE] + 1, upto + 1):
            if not n[SM + q] and m_seq_out:
                raise Violation(Breach.PASSED_UNCOMMITTED)
            if not n[SM + q]:
                raise Violation(Breach.PHANTOM_SEQ)
            if n[MS + q] == ANSWERED:
                raise Violation(Breach.ANSWERED_TWICE)
            if n[MS + q] == OTHER:
                if (n[b + SEEN] >> n[SM + q]) & 1:
                    raise Violation(Breach.RESOLVED_YET_ANSWERED)
                if m_mid_cnt:
                    raise Violation(Breach.NEVER_FINISHES)
                continue
            if not (n[b + SEEN] >> n[SM + q]) & 1:
                raise Violation(Breach.ANSWERED_UNRECEIVED)
            n[MS + q] = ANSWERED
        if upto > n[DONE]:
            n[DONE] = upto
        n[ATT] = n[STALL] = n[INTR] = 0
        unasked(n)
        n[ST], n[OWN] = IDLE, 0
        if asking:
            n[AW], n[ASKD] = asking, n[INC]
        advance(n, m_mid_fin)
        n[RODE] = 0
        settle(n, m_due_fin or (m_due_last and n[b + NLOC] <= n[DONE]))
        t = n[b + TOK]
        n[COM + (t >> 3)] |= 1 << (t & 7)
        if n[LAST] > n[DONE]:
            wake(n)
        elif cfg.notify_only:
            for j in range(NS):  # answered: tell every waiter
                if n[base[j]] == WAIT:
                    n[base[j] + WAKE] = 1

    def check(n):
        """State invariants. They speak of the unweakened protocol: a mutant is judged by what
        it does to messages and callers, not by the bookkeeping it lacks."""
        if mut:
            return
        if n[DONE] > n[LAST] or n[FET] > n[LAST] or (n[ST] == RUN and n[FET] < n[DONE]):
            raise Violation(Breach.S_ORDER)
        if sum(1 for b in base if n[b] in RUNNING_PCS and owns(n, b)) > 1:
            raise Violation(Breach.TWO_HOLDERS)
        for q in range(1, n[LAST] + 1):
            if not n[SM + q]:
                raise Violation(Breach.SEQ_WITHOUT_MESSAGE)
            if n[MS + q] == PENDING and q <= n[DONE]:
                raise Violation(Breach.PASSED_PENDING)
            if n[MS + q] in (ANSWERED, DEAD) and q > n[DONE]:
                raise Violation(Breach.RESOLVED_ABOVE_DONE)
        if n[ST] not in (NONE, DEL, RUN) and n[DONE] < n[LAST] and n[MS + n[DONE] + 1] != PENDING:
            raise Violation(Breach.H_HEAD)
        if cfg.due and n[ST] == IDLE and n[LAST] > n[DONE] and not n[DUE] and n[AW] != HOLD:
            raise Violation(Breach.D_DUE_ROW)
        if n[DTOK] > n[MAXT]:
            raise Violation(Breach.TOKEN_ABOVE_LARGEST)

    # ---- the transition relation ---------------------------------------------
    def successors(s):
        out = []

        def emit(label, n, fault=False):
            out.append((label, bytes(n), fault))

        for i in range(NA):
            b = base[i]
            pc = s[b]
            who = actors[i]

            if pc == END:
                continue

            if pc == S0 and i == human and not s[AW] and not known(s, i):
                if s[ASKD]:
                    n = bytearray(s)
                    if m_q_late and n[ST] in (IDLE, RUN):
                        submit(n, i)
                    to_end(n, i, "refused")
                    emit(f"{who}: decides too late, refused", n)
                continue

            if pc == S0:
                n = bytearray(s)
                if m_init and s[ST] == NONE:
                    n[b] = INIT2
                    emit(f"{who}: SELECT finds no thread row", n)
                elif m_claim_first and s[ST] not in (NONE, DEL):
                    if s[ST] == IDLE:
                        submit(n, i)
                    else:
                        n[b] = CLM1
                    emit(f"{who}: claim statement runs before the insert", n)
                elif m_seq_out:
                    if n[ST] in (NONE, DEL):
                        create(n)
                    n[LAST] += 1
                    n[b + SEQ], n[b + SINC] = n[LAST], n[INC]
                    n[b] = INS2
                    emit(f"{who}: takes seq {n[LAST]} from a sequence, not yet committed", n)
                else:
                    submit(n, i)
                    emit(f"{who}: submit transaction", n)
                    if cfg.lazy:
                        n = bytearray(s)
                        submit(n, i, noclaim=True)
                        emit(f"{who}: submit stores without claiming", n)

            elif pc == INIT2:
                n = bytearray(s)
                create(n)
                submit(n, i)
                emit(f"{who}: INSERT OR REPLACE thread row, then submit", n)

            elif pc == CLM1:
                n = bytearray(s)
                submit(n, i, noclaim=True)
                emit(f"{who}: inserts its message after the missed claim", n)

            elif pc == INS2:
                n = bytearray(s)
                q = n[b + SEQ]
                n[SM + q], n[MS + q] = i + 1, PENDING
                n[b] = WAIT
                emit(f"{who}: commits message at seq {q}", n)

            elif pc == SUBSCR:
                n = bytearray(s)
                n[b] = WAIT
                emit(f"{who}: subscribes to wake-ups (after its check)", n)

            elif pc == WAIT:
                n = bytearray(s)
                if cfg.notify_only and not s[b + WAKE]:
                    pass
                else:
                    step = wait_step(n, i)
                    if step == ("CLAIM",):
                        try_claim(n, i, f"{who}: waiter claims, token {n[DTOK] + 1}", emit)
                    elif step:
                        emit(f"{who}: {step}", n)
                if cfg.deadline:
                    n = bytearray(s)
                    to_end(n, i, "queued")
                    emit(f"{who}: deadline passes, outcome queued", n, True)

            elif pc == POLL and cfg.rq:
                if s[DUE] and not s[DISP] and (claimable(s) or not waits(s)):
                    n = bytearray(s)
                    if m_dis_any:
                        n[b] = LEA2
                        emit(f"{who}: sees a due row that is not dispatched", n)
                    elif claimable(n):
                        lease(n, i)
                        emit(f"{who}: leases the due row", n)
                    else:
                        drop_due(n)
                        emit(f"{who}: deletes a due row under the thread lock", n)

            elif pc == LEA2:
                n = bytearray(s)
                lease(n, i)
                emit(f"{who}: leases the due row as it was seen", n)

            elif pc == SEND:
                n = bytearray(s)
                n[Q] = min(2, n[Q] + 1)
                n[b] = POLL
                emit(f"{who}: sends a job", n)

            elif pc == POLL and cfg.due:
                if s[DUE] and (claimable(s) or not waits(s)):
                    n = bytearray(s)
                    if claimable(n):
                        drop_due(n)
                        claim(n, i)
                        emit(f"{who}: poller claims by due row, token {n[DTOK]}", n)
                    elif m_due_del:
                        n[b] = PDEL
                        emit(f"{who}: reads the thread without a lock: nothing to do", n)
                    else:
                        drop_due(n)
                        emit(f"{who}: deletes a due row under the thread lock", n)

            elif pc == PDEL:
                n = bytearray(s)
                drop_due(n)
                n[b] = POLL
                emit(f"{who}: deletes the due row, no lock", n)

            elif pc == LATE:
                n = bytearray(s)
                drop_due(n)
                n[b] = FETCH
                emit(f"{who}: deletes the due row after its claim", n)
                n = bytearray(s)
                n[b] = FETCH
                emit(f"{who}: goes on", n)

            elif pc == RECV:
                n = bytearray(s)
                if not owns(n, b):
                    abort(n, i)
                    emit(f"{who}: answer of a claim that is already lost", n)
                else:
                    hand_out(n, b, n[DONE], n[b + UPTO])
                    n[b] = WORK
                    emit(f"{who}: receives claim and batch up to {n[b + UPTO]}", n)

            elif pc == FINR:
                n = bytearray(s)
                if owns(n, b) and n[b + UPTO] > n[DONE]:
                    commit(n, i)
                    n[b] = DELIV
                    emit(f"{who}: finish commits with the last_seq read before", n)
                else:
                    abort(n, i)
                    emit(f"{who}: finish matches 0 rows, turn lost", n)

            elif pc == AMB2:
                n = bytearray(s)
                ok = n[ST] == RUN and n[OWN] == i + 1 and n[DTOK] == n[b + TOK] + 1 and n[INC] == n[b + RINC]
                if ok:
                    n[b + TOK] = n[DTOK]
                    n[b + UPTO] = n[DONE]
                    n[b + SEEN] = 0
                    n[b] = FETCH
                    emit(
                        f"{who}: reads turns: committed, and adopts the next turn by its claim_id",
                        n,
                    )
                else:
                    abort(n, i)
                    emit(f"{who}: reads turns: committed, goes home", n)

            elif pc == POLL:
                if claimable(s) or (m_seq_out and s[ST] == IDLE and visible_due(s)):
                    n = bytearray(s)
                    if m_read_write:
                        n[b] = CL2
                        n[b + TOK] = n[DTOK]
                        emit(f"{who}: reads status idle, token {n[DTOK]}", n)
                    else:
                        try_claim(n, i, f"{who}: poller claims, token {n[DTOK] + 1}", emit)

            elif pc == QWORK:
                if s[Q]:
                    n = bytearray(s)
                    n[Q] -= 1
                    if claimable(n):
                        drop_due(n)
                        try_claim(n, i, f"{who}: takes the job, claims, token {n[DTOK] + 1}", emit)
                    elif waits(n):
                        emit(f"{who}: takes the job before the thread may start, leaves the due row", n)
                    else:
                        drop_due(n)
                        emit(f"{who}: takes the job, nothing to claim, deletes the due row", n)
                    if s[BCR]:
                        n = bytearray(s)
                        n[BCR] -= 1
                        n[Q] -= 1
                        lose_job(n)
                        emit(f"{who}: takes the job and is KILLED", n, True)

            elif pc == CL2:
                n = bytearray(s)
                claim_naive(n, i)
                emit(f"{who}: writes status running, token {n[b + TOK]}", n)

            elif pc == CHK2:
                n = bytearray(s)
                if n[ST] == IDLE:
                    claim(n, i)
                    emit(f"{who}: claims on status alone, token {n[DTOK]}", n)
                else:
                    n[b] = WAIT
                    emit(f"{who}: claim missed, waits", n)

            elif pc == EST:
                n = bytearray(s)
                if n[XF] > n[b + TOK]:
                    abort(n, i)
                    emit(f"{who}: fence refused (newer holder), turn lost", n)
                else:
                    n[XF] = n[b + TOK]
                    n[XE] = max(n[XE], n[XF])
                    n[b] = FETCH
                    emit(f"{who}: establishes fence {n[XF]} in the other store", n)

            elif pc == FETCH:
                if cfg.nofetch:
                    n = bytearray(s)
                    n[b] = FIN
                    emit(f"{who}: handler never fetches", n)
                n = bytearray(s)
                if m_fetch_split:
                    hi = n[LAST]
                    n[b + UPTO] = hi
                    hand_out(n, b, n[DONE], hi)
                    n[b] = FETCH2
                    emit(f"{who}: SELECT messages up to {hi}", n)
                elif not owns(n, b):
                    abort(n, i)
                    emit(f"{who}: fetch refused, turn lost", n)
                else:
                    hi = min(visible_max(n), fetch_limit(n))
                    n[FET] = hi
                    n[RODE] = 0
                    n[b + UPTO] = hi
                    for q in range(n[DONE] + 1, hi + 1):
                        if n[SM + q]:
                            hand_out(n, b, q - 1, q)
                    n[b] = READ if cfg.extstore else WORK
                    emit(f"{who}: fetch up to seq {hi}", n)
                    if s[BAK]:
                        n = bytearray(s)
                        n[BAK] -= 1
                        n[FET] = min(visible_max(n), fetch_limit(n))
                        n[b] = READ if cfg.extstore else WORK
                        emit(f"{who}: fetch commits but its answer is lost; handler goes on", n, True)

            elif pc == FETCH2:
                n = bytearray(s)
                if not owns(n, b):
                    abort(n, i)
                    emit(f"{who}: fetch refused, turn lost", n)
                else:
                    n[FET] = n[LAST]
                    n[b] = READ if cfg.extstore else WORK
                    emit(f"{who}: UPDATE fetched_seq = max(seq) = {n[FET]}", n)

            elif pc == READ:
                n = bytearray(s)
                n[b + NLOC] = n[XV]
                n[b] = WORK
                emit(f"{who}: reads value {n[XV]} in the other store", n)

            elif pc == WORK:
                if owns(s, b) and asked(s):
                    n = bytearray(s)
                    stopped(n)
                    abort(n, i)
                    emit(f"{who}: sees that it is asked to stop, releases", n)
                if s[RODE] and owns(s, b) and cfg.ride:
                    n = bytearray(s)
                    n[RODE] = 0
                    emit(f"{who}: first heartbeat", n)
                poisoned = cfg.poison and (s[b + SEEN] >> cfg.poison) & 1
                if poisoned:
                    n = bytearray(s)
                    die(n, i, retry=False)
                    emit(f"{who}: poison message kills the process", n)
                    continue
                if (
                    cfg.midfetch
                    and owns(s, b)
                    and fetch_limit(s) > s[b + UPTO]
                    and not m_seq_out
                    and s[LAST] > s[b + UPTO]
                ):
                    n = bytearray(s)
                    hi = min(n[LAST], fetch_limit(n))
                    hand_out(n, b, n[b + UPTO], hi)
                    n[FET] = n[b + UPTO] = hi
                    emit(f"{who}: fetches again, up to seq {hi}", n)
                    if s[BAK]:
                        n = bytearray(s)
                        n[BAK] -= 1
                        n[FET] = hi
                        emit(f"{who}: second fetch commits, answer lost", n, True)
                n = bytearray(s)
                ok = owns(n, b)
                if m_reclaim_same:
                    ok = n[DTOK] == n[b + TOK] and n[INC] == n[b + RINC]
                if not ok:
                    abort(n, i)
                    emit(f"{who}: fenced write refused, turn lost", n)
                elif m_dbw_split:
                    n[b] = DBW2
                    emit(f"{who}: plain SELECT says the claim is mine", n)
                else:
                    if not owns(n, b):
                        raise Violation(Breach.WRITE_AFTER_LOSS)
                    n[b] = EXTW if cfg.extstore else FIN
                    emit(f"{who}: fenced write in the same database", n)

            elif pc == DBW2:
                n = bytearray(s)
                if not owns(n, b):
                    raise Violation(Breach.WRITE_AFTER_LOSS)
                n[b] = EXTW if cfg.extstore else FIN
                emit(f"{who}: writes", n)

            elif pc == EXTW:
                n = bytearray(s)
                if n[XF] > n[b + TOK]:
                    abort(n, i)
                    emit(f"{who}: other store refuses, turn lost", n)
                elif m_ext_split:
                    n[b] = EXTW2
                    emit(f"{who}: reads fence, it is not newer", n)
                else:
                    ext_write(n, i)
                    emit(f"{who}: writes the other store under fence {n[b + TOK]}", n)

            elif pc == EXTW2:
                n = bytearray(s)
                ext_write(n, i)
                emit(f"{who}: writes the other store", n)

            elif pc == FIN:
                n = bytearray(s)
                if m_early and not owns(n, b):
                    raise Violation(Breach.REPLY_OF_A_LOSER)
                if m_fin_any:
                    commit(n, i)
                    n[b] = DELIV
                    emit(f"{who}: finish without token test", n)
                elif not owns(n, b) or (n[b + UPTO] > n[FET] and not m_implicit):
                    abort(n, i)
                    emit(f"{who}: finish matches 0 rows, turn lost", n)
                elif (n[FET] if m_implicit else n[b + UPTO]) <= n[DONE] and not m_chk_claim:
                    # nothing received: release without a reply
                    if n[LAST] > n[DONE]:
                        charge(n)
                    else:
                        n[ST], n[OWN] = IDLE, 0
                    abort(n, i)
                    emit(f"{who}: empty turn released, no reply", n)
                elif m_due_last:
                    n[b + NLOC] = n[LAST]
                    n[b] = FINR
                    emit(f"{who}: finish reads last_seq in its snapshot", n)
                elif i >= NS and s[BHO] and s[LAST] > s[b + UPTO]:
                    commit(n, i)
                    if n[ST] == IDLE and n[LAST] > n[DONE]:
                        n[BHO] -= 1
                        drop_due(n)
                        old = n[b + TOK]
                        n[ST], n[OWN] = RUN, i + 1
                        if not m_ho_same:
                            n[DTOK] += 1
                            n[MAXT] = max(n[MAXT], n[DTOK])
                        n[FET] = fetch_limit(n)
                        n[RODE] = 1
                        n[b + TOK] = n[DTOK]
                        n[b + UPTO], n[b + SEEN] = n[FET], 0
                        n[b] = RECV
                        emit(
                            f"{who}: finish commits and hands the next batch over, token {n[DTOK]}",
                            n,
                        )
                        if s[BAK]:
                            n = bytearray(n)
                            n[BAK] -= 1
                            n[b + TOK] = old
                            n[b] = AMB2
                            emit(f"{who}: finish+hand-off commits, acknowledgement lost", n, True)
                    else:
                        n[b] = DELIV
                        emit(f"{who}: finish commits, nothing left", n)
                else:
                    if s[BAK] and cfg.handoff:
                        n2 = bytearray(s)
                        n2[BAK] -= 1
                        n2[b] = AMB
                        emit(f"{who}: finish sent, connection lost before commit", n2, True)
                    commit(n, i)
                    n[b] = DELIV
                    emit(f"{who}: finish commits, answered up to {n[DONE]}", n)
                    if s[BAK]:
                        n = bytearray(n)
                        n[BAK] -= 1
                        n[b] = AMB
                        emit(f"{who}: finish commits, acknowledgement lost", n, True)
                if s[BSU] and owns(s, b) and s[DONE] < s[b + UPTO] <= s[FET]:
                    n = bytearray(s)
                    n[BSU] -= 1
                    commit(n, i, cfg.awaiting)
                    n[b] = DELIV
                    emit(f"{who}: finish commits with a question", n, True)
                if s[BFA]:
                    n = bytearray(s)
                    n[BFA] -= 1
                    if owns(n, b):
                        if asked(n):
                            stopped(n)
                        else:
                            charge(n, True)
                        abort(n, i)
                        emit(f"{who}: handler fails, released without advancing", n, True)
                    elif m_rel_any and n[ST] == RUN:
                        ob = base[n[OWN] - 1] if n[OWN] else None
                        if ob is not None and n[ob] in RUNNING_PCS and owns(n, ob):
                            raise Violation(Breach.RELEASED_ANOTHERS_CLAIM)
                        n[ST], n[OWN] = IDLE, 0
                        abort(n, i)
                        emit(f"{who}: handler fails, unconditional release", n, True)
                    else:
                        abort(n, i)
                        emit(f"{who}: handler fails, claim already lost", n, True)

            elif pc == HUNG:
                # never moves again by itself; its heartbeat learns of the loss
                if not owns(s, b):
                    n = bytearray(s)
                    abort(n, i)
                    emit(f"{who}: heartbeat matches 0 rows, hung turn is cancelled", n)

            elif pc == AMB:
                n = bytearray(s)
                t = n[b + TOK]
                if m_ack:
                    if i < NS:
                        to_end(n, i, "failed")
                    else:
                        abort(n, i)
                    emit(f"{who}: takes the lost acknowledgement for a failure", n)
                elif (n[COM + (t >> 3)] >> (t & 7)) & 1:
                    if cfg.handoff and n[INC] == n[b + RINC] and n[ST] != DEL and n[b + UPTO] > n[DONE]:
                        raise Violation(Breach.REPLY_NEVER_STORED)
                    n[b] = DELIV
                    emit(f"{who}: reads its turns row: committed", n)
                else:
                    n[b] = FIN
                    emit(f"{who}: reads its turns row: not committed, retries", n)

            elif pc == DELIV:
                n = bytearray(s)
                if i < NS and n[b + SEQ] > n[b + UPTO] and not m_own:
                    # a limited batch did not reach this caller's own message
                    reset_runner(n, b)
                    n[b], n[b + WAKE] = WAIT, 1
                    emit(f"{who}: stores the reply to earlier messages, waits for its own", n)
                else:
                    # own commit covered own message (UPTO is what was committed)
                    own = n[b + SEQ] <= n[b + UPTO]
                    to_end(n, i, "own" if own else "answered")
                    emit(f"{who}: delivers the stored reply", n)

            # -- process kill ---------------------------------------------------
            if s[BCR] and pc in CRASHABLE:
                n = bytearray(s)
                n[BCR] -= 1
                if pc == SEND:
                    lose_job(n)
                die(n, i, retry=False)
                emit(f"{who}: KILLED", n, True)
                if i < NS and cfg.retry:
                    n = bytearray(s)
                    n[BCR] -= 1
                    die(n, i, retry=True)
                    emit(f"{who}: KILLED, client will resubmit the same message id", n, True)
            if s[BHA] and pc == WORK and owns(s, b):
                n = bytearray(s)
                n[BHA] -= 1
                n[b] = HUNG
                emit(f"{who}: handler HANGS, heartbeat goes on", n, True)
            # -- caller cancelled after the claim (process lives on) --------------
            if s[BCA] and pc in RUNNING_PCS:
                n = bytearray(s)
                n[BCA] -= 1
                hb = (n[b + TOK], n[b + RINC])
                if m_orphan:
                    # the heartbeat task survives the cancelled turn
                    die(n, i, retry=False)
                    n[b + HB] = 1
                    n[b + TOK], n[b + RINC] = hb
                else:
                    # shielded release; no attempt is charged
                    if owns(n, b):
                        n[ST], n[OWN] = IDLE, 0
                        unasked(n)
                        advance(n)
                        settle(n)
                        wake(n)
                    die(n, i, retry=False)
                emit(f"{who}: turn cancelled by its caller", n, True)

        # -- mid-range dispositions, rollback, park/resume
        if s[BMC] and s[ST] in (IDLE, RUN, PARK):
            for q in range(s[DONE] + 1, s[LAST] + 1):
                if (
                    s[MS + q] == PENDING
                    and s[SM + q]
                    and (s[ST] != RUN or q > max(s[FET], s[DONE] + (not m_head)) or m_mid_fet)
                ):
                    n = bytearray(s)
                    n[BMC] -= 1
                    n[MS + q] = OTHER
                    if n[ST] != RUN:
                        advance(n, m_mid_norm)
                    settle(n)
                    emit(f"cancel/expire of seq {q}", n, True)
        if s[BRB] and s[ST] == RUN and s[FET] > s[DONE]:
            n = bytearray(s)
            n[BRB] -= 1
            for q in range(n[DONE] + 1, n[FET] + 1):
                if n[MS + q] == PENDING:
                    n[MS + q] = OTHER
            if not m_rb_req:
                unasked(n)
                n[ST], n[OWN], n[RODE] = IDLE, 0, 0
                n[DTOK] += 1
                n[MAXT] = max(n[MAXT], n[DTOK])
                advance(n)
                settle(n, m_due_can)
                wake(n)
            emit("rollback: turn ended, its messages superseded", n, True)
        if s[BIN] and s[ST] == RUN and not asked(s) and (m_st_often or s[INTR] < cfg.max_interrupts):
            n = bytearray(s)
            n[BIN] -= 1
            ask(n)
            n[INTR] += 1
            n[NIN + n[DONE] + 1] += 1
            if n[NIN + n[DONE] + 1] > cfg.max_interrupts:
                raise Violation(Breach.STOPPED_TOO_OFTEN)
            emit("interrupt: the running turn is asked to stop", n, True)
        if s[BST] and s[ST] == RUN:
            n = bytearray(s)
            n[BST] -= 1
            ask(n)
            n[CUP] = n[LAST]
            held = n[DONE] if m_st_held else max(n[FET], n[DONE] + 1)
            for q in range(n[DONE] + 1, n[LAST] + 1):
                n[NAMED] |= 1 << n[SM + q]
                if n[MS + q] == PENDING and q > held:
                    n[MS + q] = OTHER
            emit("stop: the running turn is asked to stop, what waits is cancelled", n, True)
        if s[ST] == RUN and asked(s) and not m_st_any:
            n = bytearray(s)
            force(n)
            emit("sweep: the grace is over, the turn is released by force", n)
        if m_st_any and s[ST] == RUN and s[CAN] == s[DTOK] and s[SAW] != s[CAN]:
            n = bytearray(s)
            n[SAW] = s[CAN]
            emit("sweep: observes that a grace is over", n)
        if m_st_any and s[ST] == RUN and s[SAW]:
            n = bytearray(s)
            n[SAW] = 0
            force(n)
            emit("sweep: releases whatever turn runs", n)
        if s[BPK] and s[ST] == IDLE:
            n = bytearray(s)
            n[BPK] -= 1
            n[ST] = PARK
            emit("admin parks the thread", n, True)
        if cfg.park and s[ST] == PARK and not s[STALL] and not (s[DUE] and m_due_res):
            n = bytearray(s)
            n[ST], n[BACK] = IDLE, 0
            settle(n, m_due_res)
            emit("admin resumes the thread", n, True)
        if s[BFL] and s[Q]:
            n = bytearray(s)
            n[BFL] -= 1
            n[Q] = 0
            lose_job(n)
            emit("Redis flushed", n, True)
        if s[DISP] and (s[LOST] or s[BLA]) and not m_dis_ever:
            n = bytearray(s)
            n[BLA] -= not s[LOST]
            n[DISP] = n[LOST] = 0
            emit("a dispatch lease lapses" + ("" if s[LOST] else " too early"), n, not s[LOST])

        if s[BACK] and s[ST] == IDLE:
            n = bytearray(s)
            n[BACK] = 0
            emit("the backoff passes", n)

        # -- expiry and reclaim -----------------------------------------------------
        if s[ST] == RUN:
            o = s[OWN] - 1
            alive = False
            if o >= 0:
                ob = base[o]
                alive = (s[ob] in RUNNING_PCS and owns(s, ob)) or (s[ob + HB] and owns(s, ob))
                if s[ob] == HUNG and owns(s, ob) and m_no_window:
                    alive = True
            stale_worker = any(s[x] in RUNNING_PCS and s[x + RINC] for x in base)
            if m_hb_any and not alive and stale_worker:
                raise Violation(Breach.DEAD_CLAIM_KEPT_ALIVE)
            if not alive or s[BEX]:
                n = bytearray(s)
                if alive:
                    n[BEX] -= 1
                if m_fail_only:
                    n[OWN], n[ST] = 0, IDLE
                    wake(n)
                else:
                    charge(n)
                if not m_reclaim_same and not m_fin_any:
                    n[DTOK] += 1
                    n[MAXT] = max(n[MAXT], n[DTOK])
                emit("reclaim" + (" under a live owner" if alive else " of a dead owner"), n, alive)

        # -- deletion -----------------------------------------------------------------
        if s[BDE] and s[ST] in (IDLE, RUN, PARK):
            n = bytearray(s)
            n[BDE] -= 1
            n[LAST] = n[FET] = n[DONE] = n[ATT] = n[OWN] = n[FETC] = n[STALL] = n[RODE] = 0
            drop_due(n)
            n[BACK] = 0
            n[CAN] = n[INTR] = n[CUP] = n[NAMED] = 0
            n[AW] = n[AW] if m_q_del else 0
            for q in range(L.maxseq + 1):
                n[SM + q] = n[MS + q] = n[NAT + q] = n[NIN + q] = 0
            if m_aba:
                n[ST] = NONE
                n[DTOK] = n[INC] = n[MAXT] = 0
            else:
                n[ST] = DEL
                n[DTOK] += 1
                n[MAXT] = max(n[MAXT], n[DTOK])
            wake(n)
            emit("thread deleted", n, True)
        return out

    def ask(n):
        t = n[CAN] = n[DTOK]
        n[ASK + (t >> 3)] |= 1 << (t & 7)

    def force(n):
        if m_st_charge:
            n[ATT] += 1
            if n[ATT] >= cfg.max_attempts:
                dead_letter(n, n[DONE] + 1)
        stopped(n)
        n[DTOK] += 1
        n[MAXT] = max(n[MAXT], n[DTOK])

    def lease(n, i):
        """Leaves the due thread to a worker: until the lease lapses no dispatcher does so again."""
        if n[DISP]:
            raise Violation(Breach.LEASED_TWICE)
        n[DISP], n[base[i]] = 1, SEND
        if m_dis_del:
            drop_due(n)

    CRASHABLE = RUNNING_PCS | {WAIT, AMB, DELIV, SUBSCR, HUNG, SEND}

    def visible_max(n):
        if not m_seq_out:
            return n[LAST]
        hi = n[DONE]
        for q in range(1, L.maxseq + 1):
            if n[SM + q] and q > hi:
                hi = q
        return hi

    def visible_due(n):
        return visible_max(n) > n[DONE]

    def die(n, i, retry):
        b = base[i]
        if i >= NS:
            for f in range(ASZ):
                n[b + f] = 0
            n[b] = home(i)
        else:
            for f in range(ASZ):
                n[b + f] = 0
            n[b] = S0 if retry else END

    def ext_write(n, i):
        b = base[i]
        if n[XE] > n[b + TOK]:
            raise Violation(Breach.WRITE_BEHIND_FENCE)
        if n[XV] != n[b + NLOC]:
            raise Violation(Breach.LOST_UPDATE)
        n[XF] = n[b + TOK]
        n[XE] = max(n[XE], n[XF])
        n[XV] += 1
        n[b] = FIN

    def claim_naive(n, i):
        b = base[i]
        if n[ST] not in (IDLE, RUN):
            n[b] = home(i) if i >= NS else WAIT
            n[b + TOK] = 0
            return
        claim(n, i, n[b + TOK] + 1)

    def known(n, i):
        """The seq of the actor's message, or 0."""
        return max((q for q in range(1, n[LAST] + 1) if n[SM + q] == i + 1), default=0)

    def question(n, i):
        """A new message: the answer closes the question, and any where the question says so."""
        if i == human and (not n[AW] or n[ASKD] != n[INC]):
            raise Violation(Breach.DECIDED_WHAT_IS_CLOSED)
        if (i == human and not m_q_open) or n[AW] == CLOSE:
            n[AW] = 0

    def submit(n, i, noclaim=False):
        b = base[i]
        if n[ST] in (NONE, DEL):
            create(n)
        seq = known(n, i)
        if not seq:
            question(n, i)
        if not seq or m_dup:
            if seq:
                # duplicate id: the insert hits the unique key, but last_seq moved
                if n[LAST] < L.maxseq:
                    n[LAST] += 1
            else:
                n[LAST] += 1
                seq = n[LAST]
                n[SM + seq], n[MS + seq] = i + 1, PENDING
                if cfg.latest:
                    lo = max(n[FET], n[DONE] + 1) if n[ST] == RUN and not m_mid_sup else n[DONE]
                    for q in range(lo + 1, seq):
                        if n[MS + q] == PENDING:
                            n[MS + q] = OTHER
                    if n[ST] != RUN:
                        advance(n, m_mid_norm)
        n[b + SEQ], n[b + SINC] = seq, n[INC]
        if n[MS + seq] == ANSWERED:
            to_end(n, i, "answered")
        elif n[MS + seq] == DEAD:
            to_end(n, i, "dead")
        elif n[MS + seq] == OTHER:
            to_end(n, i, "other")
        elif n[ST] == PARK:
            to_end(n, i, "parked")
        elif claimable(n) and not noclaim:
            if m_read_write:
                n[b] = CL2
                n[b + TOK] = n[DTOK]
            else:
                claim(n, i)
        else:
            n[b] = SUBSCR if m_sub_late else WAIT
            n[b + WAKE] = 0
        settle(n, m_due_lazy or (m_q_due and i == human))

    def wait_step(n, i):
        """One look of a waiter; returns a label, or None when nothing changes."""
        b = base[i]
        seq = n[b + SEQ]
        if n[b + SINC] != n[INC] or n[ST] in (NONE, DEL):
            to_end(n, i, "gone")
            return "thread deleted, outcome gone"
        if m_ans_fetched and seq <= n[FET]:
            to_end(n, i, "answered")
            return "seq <= fetched_seq, says already answered"
        if m_dead_ans and seq <= n[DONE]:
            to_end(n, i, "answered")
            return "seq <= done_seq, says already answered"
        if n[MS + seq] == ANSWERED:
            to_end(n, i, "answered")
            return "already answered"
        if m_seq_out and seq <= n[DONE]:
            to_end(n, i, "answered")
            return "seq <= done_seq, says already answered"
        if n[MS + seq] == DEAD:
            to_end(n, i, "dead")
            return "dead-lettered"
        if n[MS + seq] == OTHER:
            to_end(n, i, "other")
            return "superseded/cancelled"
        if n[ST] == PARK:
            to_end(n, i, "parked")
            return "thread parked"
        if m_chk_claim:
            if n[ST] == IDLE:
                n[b] = CHK2
                return "checks: not answered yet, thread idle"
            return None
        if claimable(n, seq) or (m_seq_out and n[ST] == IDLE and visible_due(n)):
            if m_read_write:
                n[b] = CL2
                n[b + TOK] = n[DTOK]
                return f"reads status idle, token {n[DTOK]}"
            if n[BLO]:
                return ("CLAIM",)
            claim(n, i)
            return f"waiter claims, token {n[DTOK]}"
        if cfg.notify_only and n[b + WAKE]:
            n[b + WAKE] = 0
            return "woken, nothing to do, sleeps again"
        return None

    def rest_error(s):
        """Asked when no step but faults is enabled: the system has come to rest."""
        for i in range(NS):
            if s[base[i]] != END and not (i == human and s[base[i]] == S0 and not s[AW]):
                return Breach.SUBMITTER_WAITS
        if s[ST] == RUN:
            return Breach.CLAIMED_FOREVER
        if s[ST] == IDLE and cfg.pollers:
            for q in range(1, s[LAST] + 1):
                if q <= L.maxseq and s[SM + q] and s[MS + q] == PENDING:
                    return Breach.MESSAGE_UNRESOLVED
        return None

    def show(s):
        msgs = ",".join(f"{q}:m{s[SM + q]}{'?ADx'[s[MS + q]]}" for q in range(1, L.maxseq + 1) if s[SM + q])
        acts = []
        for i in range(NA):
            token = s[base[i] + TOK]
            acts.append(f"{actors[i]}={PC_NAME[s[base[i]]]}" + (f"/t{token}" if token else ""))
        return (
            f"{STATUS_NAME[s[ST]]} inc={s[INC]} tok={s[DTOK]} "
            f"last={s[LAST]} fetched={s[FET]} done={s[DONE]} "
            f"att={s[ATT]}/{s[STALL]} [{msgs}] due={s[DUE]} lease={s[DISP]} jobs={s[Q]} rode={s[RODE]} "
            f"ext(f={s[XF]},v={s[XV]}) | {' '.join(acts)}"
        )

    return System(init(), successors, check, rest_error, show)


class Mutant(NamedTuple):
    """One weakened rule, what the explorer must find, and where it must find it."""

    weakens: str
    breaks: Breach
    where: dict[str, object]


def mutant(weakens: str, breaks: Breach, **where: object) -> Mutant:
    return Mutant(weakens, breaks, {"submitters": 2, "pollers": 1, "expire": 1, "crash": 1, **where})


def mutant_config(name: str) -> Config:
    return Config("mutant:" + name, **MUTANTS[name].where).with_mut(name)


B = {"extstore": False, "max_token": 40, "deadline": True}
D = {**B, "pollers": 3, "rq": True, "dispatchers": 2, "due": True, "lazy": True, "expire": 0, "retry": False}
MUTANTS = {
    "claim_read_then_write": mutant("claim is SELECT status, then UPDATE with token=read+1", Breach.TOKEN_NOT_NEW),
    "finish_unconditional": mutant("finish has no token/status test", Breach.COMMIT_WITHOUT_CLAIM),
    "release_unconditional": mutant(
        "fail/finally releases without a token test", Breach.RELEASED_ANOTHERS_CLAIM, fail=1
    ),
    "answered_on_fetched": mutant("waiter says already_answered at seq <= fetched_seq", Breach.TOLD_ANSWERED),
    "fetched_not_reset": mutant(
        "claim keeps the old fetched_seq; finish sets done_seq = fetched_seq",
        Breach.ANSWERED_UNRECEIVED,
        nofetch=True,
    ),
    "fetch_select_then_update": mutant(
        "fetch selects, then writes fetched_seq=max(seq) (READ COMMITTED)",
        Breach.ANSWERED_UNRECEIVED,
        expire=0,
        crash=0,
    ),
    "finish_implicit_upto": mutant(
        "finish sets done_seq = fetched_seq of the row, not what the worker holds",
        Breach.ANSWERED_UNRECEIVED,
        acklost=1,
    ),
    "fence_token_only": mutant("reclaim keeps the token and the fence test ignores status", Breach.WRITE_AFTER_LOSS),
    "fence_not_established": mutant("new holder reads the other store before raising its fence", Breach.LOST_UPDATE),
    "fence_check_then_write": mutant("fence row checked, then written in a second step", Breach.WRITE_BEHIND_FENCE),
    "fence_select_without_lock": mutant("fence test is a plain SELECT (no FOR SHARE/UPDATE)", Breach.WRITE_AFTER_LOSS),
    "delete_resets_token": mutant(
        "delete removes the row; token and incarnation start again",
        Breach.ANSWERED_UNRECEIVED,
        delete=1,
    ),
    "check_then_claim": mutant(
        "waiter checks its seq, then claims on status alone",
        Breach.EMPTY_TURN_REPLIED,
        expire=0,
        crash=0,
    ),
    "attempts_only_on_fail": mutant(
        "reclaim does not count an attempt; poison kills the process",
        Breach.ENDLESS_RETRIES,
        poison=1,
        crash=0,
        expire=0,
        submitters=1,
    ),
    "dup_bumps_seq": mutant("duplicate message_id still moves last_seq", Breach.PHANTOM_SEQ, expire=0, max_attempts=9),
    "seq_outside_lock": mutant(
        "seq comes from a sequence; commits out of order",
        Breach.PASSED_UNCOMMITTED,
        expire=0,
        crash=0,
    ),
    "ack_lost_means_failed": mutant(
        "lost commit acknowledgement is reported as failure",
        Breach.TOLD_FAILED,
        acklost=1,
        expire=0,
        crash=0,
    ),
    "orphan_heartbeat": mutant(
        "heartbeat task outlives a cancelled turn",
        Breach.SUBMITTER_WAITS,
        cancel=1,
        expire=0,
        crash=0,
    ),
    "heartbeat_unconditional": mutant(
        "heartbeat without token test keeps a dead newer claim alive",
        Breach.DEAD_CLAIM_KEPT_ALIVE,
        pollers=2,
        fail=0,
    ),
    "dead_letter_to_last_seq": mutant(
        "dead-letter up to last_seq instead of what was fetched",
        Breach.DEAD_UNRECEIVED,
        expire=1,
        crash=1,
    ),
    "watermark_means_answered": mutant(
        "seq <= watermark is reported as answered even when dead-lettered", Breach.TOLD_ANSWERED
    ),
    "init_select_then_insert": mutant(
        "thread row: SELECT, then INSERT OR REPLACE", Breach.SECOND_INIT, expire=0, crash=0
    ),
    "reply_before_finish": mutant("reply is delivered before finish commits", Breach.REPLY_OF_A_LOSER),
    "check_then_subscribe": mutant(
        "waiter checks, then subscribes; no re-check, no poller",
        Breach.SUBMITTER_WAITS,
        pollers=0,
        notify_only=True,
        expire=0,
        crash=0,
    ),
    "claim_before_insert": mutant(
        "submit claims first, inserts in a second step; no re-check, no poller",
        Breach.SUBMITTER_WAITS,
        pollers=0,
        notify_only=True,
        expire=0,
        crash=0,
    ),
    "wake_one_no_recheck": mutant(
        "finish wakes one waiter, which dies; no re-check, no poller",
        Breach.SUBMITTER_WAITS,
        pollers=0,
        notify_only=True,
        submitters=3,
        expire=0,
        crash=1,
        extstore=False,
        retry=False,
    ),
    "dead_letter_whole_batch": mutant(
        "after max attempts the whole fetched batch is dead-lettered",
        Breach.DEAD_TOO_EARLY,
        poison=1,
        crash=0,
        expire=1,
    ),
    "one_attempt_counter": mutant(
        "failures before the first fetch count against the head message", Breach.DEAD_UNRECEIVED
    ),
    "no_window": mutant(
        "only the heartbeat ends a claim; a hung handler keeps beating",
        Breach.SUBMITTER_WAITS,
        hang=1,
        expire=0,
        crash=0,
    ),
    "failover_without_epoch": mutant(
        "standby lacks the last claim; tokens go on from the old value",
        Breach.TOKEN_NOT_NEW,
        lose=1,
        expire=0,
        crash=0,
    ),
    "dispatch_without_lease": mutant(
        "poller marks the due row dispatched, for ever; Redis is flushed", Breach.MESSAGE_UNRESOLVED, **D, flush=1
    ),
    "dispatch_deletes_due": mutant(
        "poller deletes the due row that it dispatches, and dies before it sends", Breach.MESSAGE_UNRESOLVED, **D
    ),
    "lease_without_test": mutant(
        "a second poller leases the due row that it saw before the first leased it", Breach.LEASED_TWICE, **D
    ),
    "due_keeps_lease": mutant(
        "a turn that leaves messages keeps the lease of the due row that is there",
        Breach.MESSAGE_UNRESOLVED,
        **{**D, "fail": 1, "backoff": True},
    ),
    "own_turn_means_answered": mutant(
        "caller takes its turn's reply as the answer although the batch stopped before its message",
        Breach.TOLD_ANSWERED,
    ),
    "abort_forgets_message": mutant("a submitter whose turn lost its claim reports failure", Breach.TOLD_FAILED),
    # the due table, the riding fetch, hand-off, resolve, latest, rollback
    "due_not_in_finish": mutant(
        "finish leaves pending work without a due row", Breach.MESSAGE_UNRESOLVED, due=True, **B
    ),
    "due_not_in_reclaim": mutant(
        "reclaim leaves pending work without a due row", Breach.MESSAGE_UNRESOLVED, due=True, **B
    ),
    "due_not_in_resume": mutant(
        "resume of a parked thread writes no due row",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        park=1,
        lazy=True,
        **B,
    ),
    "due_not_in_lazy_submit": mutant(
        "a submit that does not claim writes no due row",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        lazy=True,
        **B,
    ),
    "due_not_in_rollback": mutant("rollback writes no due row", Breach.MESSAGE_UNRESOLVED, due=True, rollback=1, **B),
    "due_deleted_without_lock": mutant(
        "poller reads the thread, deletes the due row in another transaction",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        lazy=True,
        pollers=1,
        **B,
    ),
    "due_from_unlocked_last_seq": mutant(
        "finish computes last_seq > upto from a snapshot older than the lock",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        **B,
    ),
    "due_deleted_after_claim": mutant(
        "claimer deletes the backlog's due row in a later transaction",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        lazy=True,
        **B,
    ),
    "ride_charges_attempt": mutant(
        "first fetch always rides in the claim and reclaim then charges an attempt",
        Breach.DEAD_UNRECEIVED,
        ride=True,
        crash=2,
        expire=0,
        **B,
    ),
    "handoff_same_token": mutant(
        "hand-off keeps the token",
        Breach.REPLY_NEVER_STORED,
        handoff=1,
        acklost=1,
        submitters=3,
        expire=0,
        crash=0,
        lazy=True,
        due=True,
        **B,
    ),
    "mid_done_not_advanced": mutant(
        "cancel of the head does not advance done_seq",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        lazy=True,
        **B,
    ),
    "mid_finish_no_skip": mutant(
        "finish does not skip messages resolved during the run",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        **B,
    ),
    "mid_cancel_of_fetched": mutant(
        "cancel is allowed for a message a running turn holds",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        **B,
    ),
    "mid_attempts_kept": mutant(
        "head cancelled, attempts counter kept for the next message",
        Breach.DEAD_TOO_EARLY,
        midcancel=1,
        fail=2,
        crash=0,
        expire=1,
        lazy=True,
        **B,
    ),
    "head_cancelled_before_fetch": mutant(
        "only seq <= fetched_seq is protected: the head can be cancelled between claim and fetch",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        fail=2,
        crash=0,
        lazy=True,
        **B,
    ),
    "mid_dead_no_skip": mutant(
        "dead-letter of the head does not skip resolved successors",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        fail=2,
        crash=0,
        lazy=True,
        **B,
    ),
    "latest_supersedes_fetched": mutant(
        "policy latest supersedes what the running turn holds",
        Breach.RESOLVED_TURN_REPLIED,
        latest=True,
        **B,
    ),
    "mid_finish_counts_rows": mutant(
        "finish asserts rows = upto - from",
        Breach.NEVER_FINISHES,
        midcancel=1,
        submitters=3,
        lazy=True,
        crash=0,
        expire=0,
        **B,
    ),
    # an open question
    "question_holds_nothing": mutant(
        "a claim does not ask for an open question",
        Breach.CLAIMED_WHILE_HELD,
        **{**B, "submitters": 3, "crash": 0, "expire": 0, "suspend": 1, "due": True},
    ),
    "answer_leaves_question_open": mutant(
        "the answer does not close the question", Breach.SUBMITTER_WAITS, suspend=1, due=True, extstore=False
    ),
    "answer_without_question": mutant(
        "an answer is stored although another message closed its question",
        Breach.DECIDED_WHAT_IS_CLOSED,
        **{**B, "submitters": 3, "crash": 0, "expire": 0, "suspend": 1, "awaiting": CLOSE, "due": True},
    ),
    "answer_without_due": mutant(
        "the answer closes the question and writes no due row where it does not claim",
        Breach.MESSAGE_UNRESOLVED,
        suspend=1,
        due=True,
        lazy=True,
        **B,
    ),
    "question_survives_delete": mutant(
        "a deleted thread keeps its question, which the next life answers",
        Breach.DECIDED_WHAT_IS_CLOSED,
        suspend=1,
        delete=1,
        due=True,
        **B,
    ),
    "rollback_is_a_request": mutant(
        "rollback marks messages superseded but lets the turn finish",
        Breach.RESOLVED_TURN_REPLIED,
        rollback=1,
        **B,
    ),
    # a turn is asked to stop, and released by force once its grace is over
    "stop_is_a_flag": mutant(
        "a stop is a flag of the thread that names no token",
        Breach.STOPPED_UNASKED,
        interrupt=1,
        expire=0,
        crash=0,
        **B,
    ),
    "force_without_token": mutant(
        "the sweep observes that a grace is over, then releases whatever turn runs",
        Breach.STOPPED_UNASKED,
        interrupt=1,
        expire=0,
        crash=0,
        **B,
    ),
    "force_charges": mutant(
        "a forced release is charged as a failure",
        Breach.DEAD_UNRECEIVED,
        interrupt=2,
        max_interrupts=2,
        submitters=1,
        expire=0,
        crash=0,
        **B,
    ),
    "due_not_in_force": mutant(
        "a forced release writes no due row", Breach.MESSAGE_UNRESOLVED, due=True, interrupt=1, crash=0, **B
    ),
    "interrupts_without_end": mutant(
        "interrupts of one oldest message are not counted",
        Breach.STOPPED_TOO_OFTEN,
        interrupt=2,
        submitters=1,
        expire=0,
        crash=0,
        **B,
    ),
    "stop_cancels_what_is_held": mutant(
        "a stop cancels the messages that the turn has at once",
        Breach.RESOLVED_TURN_REPLIED,
        stop=1,
        expire=0,
        crash=0,
        **B,
    ),
    "stop_cancels_what_comes_later": mutant(
        "the end of a stopped turn cancels whatever is pending",
        Breach.CANCELLED_UNASKED,
        stop=1,
        expire=0,
        crash=0,
        **B,
    ),
}
