"""A turn's begin and its end: claim, finish, charge, and the stop that it is asked for."""

from __future__ import annotations

from .config import (
    ACTOR_SIZE,
    ASK,
    ASKD,
    ATT,
    AW,
    BACK,
    BLO,
    CAN,
    COM,
    CUP,
    DONE,
    DTOK,
    DUE,
    FET,
    FETC,
    INC,
    INTR,
    LAST,
    MAXT,
    NAMED,
    NLOC,
    OWN,
    RINC,
    RODE,
    SEEN,
    ST,
    STALL,
    TOK,
    UPTO,
    WAKE,
)
from .row import Row
from .words import (
    ANSWERED,
    DEAD,
    EST,
    FETCH,
    HOLD,
    IDLE,
    LATE,
    OTHER,
    PARK,
    PENDING,
    RECV,
    RUN,
    WAIT,
    Breach,
    Violation,
)


class Turns(Row):
    """What a turn does to the row and to its messages."""

    def claim(self, n, i, tok=None):
        b = self.base[i]
        if n[AW] == HOLD:
            raise Violation(Breach.CLAIMED_WHILE_HELD)
        if tok is None:
            tok = n[DTOK] + 1
        n[ST], n[DTOK], n[OWN] = RUN, tok, i + 1
        if tok <= n[MAXT]:
            raise Violation(Breach.TOKEN_NOT_NEW)
        if tok > self.cfg.max_token:
            raise Violation(Breach.ENDLESS_RETRIES)
        n[MAXT] = tok
        if not self.weak.fetched_not_reset:
            n[FET] = n[DONE]
        n[b + TOK], n[b + RINC] = tok, n[INC]
        n[b + UPTO] = n[DONE]
        n[b + SEEN] = n[b + NLOC] = n[b + WAKE] = 0
        n[b] = EST if self.cfg.extstore and not self.weak.fence_not_established else FETCH
        n[RODE] = 0
        if self.cfg.ride and (self.weak.ride_charges_attempt or n[ATT] + n[STALL] == 0):
            n[FET] = n[b + UPTO] = self.fetch_limit(n)
            n[RODE] = 1
            n[b] = RECV
        elif self.weak.due_deleted_after_claim and n[DUE] and i < self.submitters:
            n[b] = LATE

    def try_claim(self, n, i, label, out_emit):
        """Claim; also the branch in which a fail-over loses the claim."""
        m = bytearray(n)
        self.claim(n, i)
        out_emit(label, n)
        if n[BLO]:
            # acknowledged to the actor, then the primary dies; the standby
            # does not have it.  Remedy: fail-over bumps the token epoch.
            b = self.base[i]
            for f in range(ACTOR_SIZE):
                m[b + f] = n[b + f]
            m[BLO] -= 1
            if not self.weak.failover_without_epoch:
                m[DTOK] = n[DTOK] + 1
                m[MAXT] = m[DTOK]
            else:
                m[MAXT] = n[MAXT]
            out_emit(label + "; FAIL-OVER loses this commit", m, True)

    def claim_naive(self, n, i):
        b = self.base[i]
        if n[ST] not in (IDLE, RUN):
            n[b] = self.home(i) if i >= self.submitters else WAIT
            n[b + TOK] = 0
            return
        self.claim(n, i, n[b + TOK] + 1)

    def hand_out(self, n, b, lo, hi):
        for q in range(lo + 1, hi + 1):
            if n[self.SM + q] and n[self.MS + q] == PENDING:
                n[b + SEEN] |= 1 << n[self.SM + q]  # by message, not by seq: survives delete + recreate
                n[FETC] |= 1 << n[self.SM + q]

    def dead_letter(self, n, upto):
        for q in range(n[DONE] + 1, upto + 1):
            if n[self.SM + q] and not (n[FETC] >> n[self.SM + q]) & 1:
                raise Violation(Breach.DEAD_UNRECEIVED)
            if n[self.MS + q] == OTHER:
                raise Violation(Breach.RESOLVED_YET_DEAD)
            if n[self.NAT + q] < self.cfg.max_attempts:
                raise Violation(Breach.DEAD_TOO_EARLY)
            n[self.MS + q] = DEAD
        n[DONE] = upto
        n[ATT] = n[STALL] = n[INTR] = 0
        n[ST] = IDLE

    def charge(self, n, reported=False):
        """The claim ended without an answer; count it against the head message,
        or, when nothing had been fetched, against the thread."""
        n[OWN] = 0
        n[ST], n[BACK] = IDLE, self.cfg.backoff
        for q in range(n[DONE] + 1, n[FET] + 1):
            n[self.NAT + q] = min(n[self.NAT + q] + 1, self.cfg.max_attempts)
        rode, n[RODE] = n[RODE], 0
        if (
            n[FET] > n[DONE] and (reported or not rode or self.weak.ride_charges_attempt)
        ) or self.weak.one_attempt_counter:
            n[ATT] += 1
            if n[ATT] >= self.cfg.max_attempts:
                if self.weak.dead_letter_to_last_seq:
                    self.dead_letter(n, n[LAST])
                elif self.weak.dead_letter_whole_batch:
                    self.dead_letter(n, max(n[FET], n[DONE] + 1))
                else:
                    self.dead_letter(n, n[DONE] + 1)
        else:
            n[STALL] += 1
            if n[STALL] >= self.cfg.max_stalls:
                n[ST] = PARK
        done = n[DONE]
        self.unasked(n)
        self.advance(n, self.weak.mid_dead_no_skip)
        if n[DONE] > done:  # a new head starts afresh
            n[ST] = IDLE
        self.settle(n, self.weak.due_not_in_reclaim and not reported)
        self.wake(n)

    def commit(self, n, i, asking=0):
        """The finish transaction took effect for actor i.  asking: with a question that stays open."""
        b = self.base[i]
        if not self.owns(n, b):
            raise Violation(Breach.COMMIT_WITHOUT_CLAIM)
        upto = n[FET] if self.implicit_upto else n[b + UPTO]
        if upto <= n[DONE]:
            raise Violation(Breach.EMPTY_TURN_REPLIED)
        if (
            not self.weak.seq_outside_lock
            and not self.weak.dup_bumps_seq
            and all(n[self.MS + q] != PENDING for q in range(n[DONE] + 1, upto + 1))
            and all(n[self.MS + q] == OTHER for q in range(n[DONE] + 1, upto + 1))
        ):
            raise Violation(Breach.RESOLVED_TURN_REPLIED)
        for q in range(n[DONE] + 1, upto + 1):
            if not n[self.SM + q] and self.weak.seq_outside_lock:
                raise Violation(Breach.PASSED_UNCOMMITTED)
            if not n[self.SM + q]:
                raise Violation(Breach.PHANTOM_SEQ)
            if n[self.MS + q] == ANSWERED:
                raise Violation(Breach.ANSWERED_TWICE)
            if n[self.MS + q] == OTHER:
                if (n[b + SEEN] >> n[self.SM + q]) & 1:
                    raise Violation(Breach.RESOLVED_YET_ANSWERED)
                if self.weak.mid_finish_counts_rows:
                    raise Violation(Breach.NEVER_FINISHES)
                continue
            if not (n[b + SEEN] >> n[self.SM + q]) & 1:
                raise Violation(Breach.ANSWERED_UNRECEIVED)
            n[self.MS + q] = ANSWERED
        if upto > n[DONE]:
            n[DONE] = upto
        n[ATT] = n[STALL] = n[INTR] = 0
        self.unasked(n)
        n[ST], n[OWN] = IDLE, 0
        if asking:
            n[AW], n[ASKD] = asking, n[INC]
        self.advance(n, self.weak.mid_finish_no_skip)
        n[RODE] = 0
        self.settle(n, self.weak.due_not_in_finish or (self.weak.due_from_unlocked_last_seq and n[b + NLOC] <= n[DONE]))
        t = n[b + TOK]
        n[COM + (t >> 3)] |= 1 << (t & 7)
        if n[LAST] > n[DONE]:
            self.wake(n)
        elif self.cfg.notify_only:
            for j in range(self.submitters):  # answered: tell every waiter
                if n[self.base[j]] == WAIT:
                    n[self.base[j] + WAKE] = 1

    def asked(self, n):
        """The running turn is asked to stop: the stop names its token."""
        return n[CAN] and (self.weak.stop_is_a_flag or n[CAN] == n[DTOK])

    def unasked(self, n):
        """The turn is over, and with it what it was asked."""
        if n[CUP] and self.asked(n):
            for q in range(n[DONE] + 1, (n[LAST] if self.weak.stop_cancels_what_comes_later else n[CUP]) + 1):
                if n[self.MS + q] == PENDING:
                    if not (n[NAMED] >> n[self.SM + q]) & 1:
                        raise Violation(Breach.CANCELLED_UNASKED)
                    n[self.MS + q] = OTHER
        if not self.weak.stop_is_a_flag:
            n[CAN] = n[CUP] = 0

    def stopped(self, n):
        """The turn ends because it was asked to: released, uncharged."""
        t = n[DTOK]
        if not (n[ASK + (t >> 3)] >> (t & 7)) & 1:
            raise Violation(Breach.STOPPED_UNASKED)
        self.unasked(n)
        n[ST], n[OWN], n[RODE] = IDLE, 0, 0
        self.advance(n)
        self.settle(n, self.weak.due_not_in_force)
        self.wake(n)

    def ask(self, n):
        t = n[CAN] = n[DTOK]
        n[ASK + (t >> 3)] |= 1 << (t & 7)

    def force(self, n):
        if self.weak.force_charges:
            n[ATT] += 1
            if n[ATT] >= self.cfg.max_attempts:
                self.dead_letter(n, n[DONE] + 1)
        self.stopped(n)
        n[DTOK] += 1
        n[MAXT] = max(n[MAXT], n[DTOK])
