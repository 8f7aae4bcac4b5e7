"""What befalls turns and threads from outside: kills, cancellations, operators, stops, sweeps."""

from __future__ import annotations

from .config import (
    ATT,
    AW,
    BACK,
    BCA,
    BCR,
    BDE,
    BEX,
    BFL,
    BHA,
    BIN,
    BLA,
    BMC,
    BPK,
    BRB,
    BST,
    CAN,
    CUP,
    DISP,
    DONE,
    DTOK,
    DUE,
    FET,
    FETC,
    HB,
    INC,
    INTR,
    LAST,
    LOST,
    MAXT,
    NAMED,
    OWN,
    RINC,
    RODE,
    SAW,
    ST,
    STALL,
    TOK,
    Q,
)
from .finishes import Finishes
from .words import (
    AMB,
    DEL,
    DELIV,
    HUNG,
    IDLE,
    NONE,
    OTHER,
    PARK,
    PENDING,
    RUN,
    RUNNING_PCS,
    SEND,
    SUBSCR,
    WAIT,
    WORK,
    Breach,
    Violation,
)

CRASHABLE = RUNNING_PCS | {WAIT, AMB, DELIV, SUBSCR, HUNG, SEND}


class Faults(Finishes):
    """The steps that no actor takes."""

    def befall(self, s, i, emit):
        """What may befall an actor wherever it stands: a kill, a handler that hangs, a caller that is cancelled."""
        b, pc, who = self.base[i], s[self.base[i]], self.actors[i]
        if s[BCR] and pc in CRASHABLE:
            n = bytearray(s)
            n[BCR] -= 1
            if pc == SEND:
                self.lose_job(n)
            self.die(n, i, retry=False)
            emit(f"{who}: KILLED", n, True)
            if i < self.submitters and self.cfg.retry:
                n = bytearray(s)
                n[BCR] -= 1
                self.die(n, i, retry=True)
                emit(f"{who}: KILLED, client will resubmit the same message id", n, True)
        if s[BHA] and pc == WORK and self.owns(s, b):
            n = bytearray(s)
            n[BHA] -= 1
            n[b] = HUNG
            emit(f"{who}: handler HANGS, heartbeat goes on", n, True)
        if s[BCA] and pc in RUNNING_PCS:
            n = bytearray(s)
            n[BCA] -= 1
            hb = (n[b + TOK], n[b + RINC])
            if self.weak.orphan_heartbeat:
                # the heartbeat task survives the cancelled turn
                self.die(n, i, retry=False)
                n[b + HB] = 1
                n[b + TOK], n[b + RINC] = hb
            else:
                # shielded release; no attempt is charged
                if self.owns(n, b):
                    n[ST], n[OWN] = IDLE, 0
                    self.unasked(n)
                    self.advance(n)
                    self.settle(n)
                    self.wake(n)
                self.die(n, i, retry=False)
            emit(f"{who}: turn cancelled by its caller", n, True)

    def resolve_in_range(self, s, emit):
        """One pending message is cancelled or expires, or a turn is rolled back."""
        if s[BMC] and s[ST] in (IDLE, RUN, PARK):
            for q in range(s[DONE] + 1, s[LAST] + 1):
                if (
                    s[self.MS + q] == PENDING
                    and s[self.SM + q]
                    and (
                        s[ST] != RUN
                        or q > max(s[FET], s[DONE] + (not self.weak.head_cancelled_before_fetch))
                        or self.weak.mid_cancel_of_fetched
                    )
                ):
                    n = bytearray(s)
                    n[BMC] -= 1
                    n[self.MS + q] = OTHER
                    if n[ST] != RUN:
                        self.advance(n, self.weak.mid_done_not_advanced)
                    self.settle(n)
                    emit(f"cancel/expire of seq {q}", n, True)
        if s[BRB] and s[ST] == RUN and s[FET] > s[DONE]:
            n = bytearray(s)
            n[BRB] -= 1
            for q in range(n[DONE] + 1, n[FET] + 1):
                if n[self.MS + q] == PENDING:
                    n[self.MS + q] = OTHER
            if not self.weak.rollback_is_a_request:
                self.unasked(n)
                n[ST], n[OWN], n[RODE] = IDLE, 0, 0
                n[DTOK] += 1
                n[MAXT] = max(n[MAXT], n[DTOK])
                self.advance(n)
                self.settle(n, self.weak.due_not_in_rollback)
                self.wake(n)
            emit("rollback: turn ended, its messages superseded", n, True)

    def stop(self, s, emit):
        """The running turn is asked to stop, and the sweep that ends it by force."""
        if (
            s[BIN]
            and s[ST] == RUN
            and not self.asked(s)
            and (self.weak.interrupts_without_end or s[INTR] < self.cfg.max_interrupts)
        ):
            n = bytearray(s)
            n[BIN] -= 1
            self.ask(n)
            n[INTR] += 1
            n[self.NIN + n[DONE] + 1] += 1
            if n[self.NIN + n[DONE] + 1] > self.cfg.max_interrupts:
                raise Violation(Breach.STOPPED_TOO_OFTEN)
            emit("interrupt: the running turn is asked to stop", n, True)
        if s[BST] and s[ST] == RUN:
            n = bytearray(s)
            n[BST] -= 1
            self.ask(n)
            n[CUP] = n[LAST]
            held = n[DONE] if self.weak.stop_cancels_what_is_held else max(n[FET], n[DONE] + 1)
            for q in range(n[DONE] + 1, n[LAST] + 1):
                n[NAMED] |= 1 << n[self.SM + q]
                if n[self.MS + q] == PENDING and q > held:
                    n[self.MS + q] = OTHER
            emit("stop: the running turn is asked to stop, what waits is cancelled", n, True)
        if s[ST] == RUN and self.asked(s) and not self.weak.force_without_token:
            n = bytearray(s)
            self.force(n)
            emit("sweep: the grace is over, the turn is released by force", n)
        if self.weak.force_without_token and s[ST] == RUN and s[CAN] == s[DTOK] and s[SAW] != s[CAN]:
            n = bytearray(s)
            n[SAW] = s[CAN]
            emit("sweep: observes that a grace is over", n)
        if self.weak.force_without_token and s[ST] == RUN and s[SAW]:
            n = bytearray(s)
            n[SAW] = 0
            self.force(n)
            emit("sweep: releases whatever turn runs", n)

    def operate(self, s, emit):
        """An operator parks and resumes; Redis is flushed; leases of dispatch and backoffs pass."""
        if s[BPK] and s[ST] == IDLE:
            n = bytearray(s)
            n[BPK] -= 1
            n[ST] = PARK
            emit("admin parks the thread", n, True)
        if self.cfg.park and s[ST] == PARK and not s[STALL] and not (s[DUE] and self.weak.due_not_in_resume):
            n = bytearray(s)
            n[ST], n[BACK] = IDLE, 0
            self.settle(n, self.weak.due_not_in_resume)
            emit("admin resumes the thread", n, True)
        if s[BFL] and s[Q]:
            n = bytearray(s)
            n[BFL] -= 1
            n[Q] = 0
            self.lose_job(n)
            emit("Redis flushed", n, True)
        if s[DISP] and (s[LOST] or s[BLA]) and not self.weak.dispatch_without_lease:
            n = bytearray(s)
            n[BLA] -= not s[LOST]
            n[DISP] = n[LOST] = 0
            emit("a dispatch lease lapses" + ("" if s[LOST] else " too early"), n, not s[LOST])

        if s[BACK] and s[ST] == IDLE:
            n = bytearray(s)
            n[BACK] = 0
            emit("the backoff passes", n)

    def reclaim(self, s, emit):
        """A lease passes, and the sweep takes the turn back."""
        if s[ST] == RUN:
            o = s[OWN] - 1
            alive = False
            if o >= 0:
                ob = self.base[o]
                alive = (s[ob] in RUNNING_PCS and self.owns(s, ob)) or (s[ob + HB] and self.owns(s, ob))
                if s[ob] == HUNG and self.owns(s, ob) and self.weak.no_window:
                    alive = True
            stale_worker = any(s[x] in RUNNING_PCS and s[x + RINC] for x in self.base)
            if self.weak.heartbeat_unconditional and not alive and stale_worker:
                raise Violation(Breach.DEAD_CLAIM_KEPT_ALIVE)
            if not alive or s[BEX]:
                n = bytearray(s)
                if alive:
                    n[BEX] -= 1
                if self.weak.attempts_only_on_fail:
                    n[OWN], n[ST] = 0, IDLE
                    self.wake(n)
                else:
                    self.charge(n)
                if not self.weak.fence_token_only and not self.weak.finish_unconditional:
                    n[DTOK] += 1
                    n[MAXT] = max(n[MAXT], n[DTOK])
                emit("reclaim" + (" under a live owner" if alive else " of a dead owner"), n, alive)

    def delete(self, s, emit):
        """The thread is deleted."""
        if s[BDE] and s[ST] in (IDLE, RUN, PARK):
            n = bytearray(s)
            n[BDE] -= 1
            n[LAST] = n[FET] = n[DONE] = n[ATT] = n[OWN] = n[FETC] = n[STALL] = n[RODE] = 0
            self.drop_due(n)
            n[BACK] = 0
            n[CAN] = n[INTR] = n[CUP] = n[NAMED] = 0
            n[AW] = n[AW] if self.weak.question_survives_delete else 0
            for q in range(self.maxseq + 1):
                n[self.SM + q] = n[self.MS + q] = n[self.NAT + q] = n[self.NIN + q] = 0
            if self.weak.delete_resets_token:
                n[ST] = NONE
                n[DTOK] = n[INC] = n[MAXT] = 0
            else:
                n[ST] = DEL
                n[DTOK] += 1
                n[MAXT] = max(n[MAXT], n[DTOK])
            self.wake(n)
            emit("thread deleted", n, True)
