"""Submitters: a message is stored, and its sender waits for what becomes of it."""

from __future__ import annotations

from .config import ASKD, AW, BLO, DONE, DTOK, FET, INC, LAST, SEQ, SINC, ST, TOK, WAKE
from .turns import Turns
from .words import (
    ANSWERED,
    CHK2,
    CL2,
    CLM1,
    CLOSE,
    DEAD,
    DEL,
    IDLE,
    INIT2,
    INS2,
    NONE,
    OTHER,
    PARK,
    PENDING,
    RUN,
    SUBSCR,
    WAIT,
    Breach,
    Violation,
)


class Submitters(Turns):
    """The steps of submitters up to their claim."""

    def question(self, n, i):
        """A new message: the answer closes the question, and any where the question says so."""
        if i == self.human and (not n[AW] or n[ASKD] != n[INC]):
            raise Violation(Breach.DECIDED_WHAT_IS_CLOSED)
        if (i == self.human and not self.weak.answer_leaves_question_open) or n[AW] == CLOSE:
            n[AW] = 0

    def submit(self, n, i, noclaim=False):
        b = self.base[i]
        if n[ST] in (NONE, DEL):
            self.create(n)
        seq = self.known(n, i)
        if not seq:
            self.question(n, i)
        if not seq or self.weak.dup_bumps_seq:
            if seq:
                # duplicate id: the insert hits the unique key, but last_seq moved
                if n[LAST] < self.maxseq:
                    n[LAST] += 1
            else:
                n[LAST] += 1
                seq = n[LAST]
                n[self.SM + seq], n[self.MS + seq] = i + 1, PENDING
                if self.cfg.latest:
                    lo = (
                        max(n[FET], n[DONE] + 1)
                        if n[ST] == RUN and not self.weak.latest_supersedes_fetched
                        else n[DONE]
                    )
                    for q in range(lo + 1, seq):
                        if n[self.MS + q] == PENDING:
                            n[self.MS + q] = OTHER
                    if n[ST] != RUN:
                        self.advance(n, self.weak.mid_done_not_advanced)
        n[b + SEQ], n[b + SINC] = seq, n[INC]
        if n[self.MS + seq] == ANSWERED:
            self.to_end(n, i, "answered")
        elif n[self.MS + seq] == DEAD:
            self.to_end(n, i, "dead")
        elif n[self.MS + seq] == OTHER:
            self.to_end(n, i, "other")
        elif n[ST] == PARK:
            self.to_end(n, i, "parked")
        elif self.claimable(n) and not noclaim:
            if self.weak.claim_read_then_write:
                n[b] = CL2
                n[b + TOK] = n[DTOK]
            else:
                self.claim(n, i)
        else:
            n[b] = SUBSCR if self.weak.check_then_subscribe else WAIT
            n[b + WAKE] = 0
        self.settle(n, self.weak.due_not_in_lazy_submit or (self.weak.answer_without_due and i == self.human))

    def wait_step(self, n, i):
        """One look of a waiter; returns a label, or None when nothing changes."""
        b = self.base[i]
        seq = n[b + SEQ]
        if n[b + SINC] != n[INC] or n[ST] in (NONE, DEL):
            self.to_end(n, i, "gone")
            return "thread deleted, outcome gone"
        if self.weak.answered_on_fetched and seq <= n[FET]:
            self.to_end(n, i, "answered")
            return "seq <= fetched_seq, says already answered"
        if self.weak.watermark_means_answered and seq <= n[DONE]:
            self.to_end(n, i, "answered")
            return "seq <= done_seq, says already answered"
        if n[self.MS + seq] == ANSWERED:
            self.to_end(n, i, "answered")
            return "already answered"
        if self.weak.seq_outside_lock and seq <= n[DONE]:
            self.to_end(n, i, "answered")
            return "seq <= done_seq, says already answered"
        if n[self.MS + seq] == DEAD:
            self.to_end(n, i, "dead")
            return "dead-lettered"
        if n[self.MS + seq] == OTHER:
            self.to_end(n, i, "other")
            return "superseded/cancelled"
        if n[ST] == PARK:
            self.to_end(n, i, "parked")
            return "thread parked"
        if self.weak.check_then_claim:
            if n[ST] == IDLE:
                n[b] = CHK2
                return "checks: not answered yet, thread idle"
            return None
        if self.claimable(n, seq) or (self.weak.seq_outside_lock and n[ST] == IDLE and self.visible_due(n)):
            if self.weak.claim_read_then_write:
                n[b] = CL2
                n[b + TOK] = n[DTOK]
                return f"reads status idle, token {n[DTOK]}"
            if n[BLO]:
                return ("CLAIM",)
            self.claim(n, i)
            return f"waiter claims, token {n[DTOK]}"
        if self.cfg.notify_only and n[b + WAKE]:
            n[b + WAKE] = 0
            return "woken, nothing to do, sleeps again"
        return None

    def begin(self, s, i, emit):
        """A submit; of the person who answers a question, once there is one."""
        b, who = self.base[i], self.actors[i]
        if i == self.human and not s[AW] and not self.known(s, i):
            if s[ASKD]:
                n = bytearray(s)
                if self.weak.answer_without_question and n[ST] in (IDLE, RUN):
                    self.submit(n, i)
                self.to_end(n, i, "refused")
                emit(f"{who}: decides too late, refused", n)
            return
        n = bytearray(s)
        if self.weak.init_select_then_insert and s[ST] == NONE:
            n[b] = INIT2
            emit(f"{who}: SELECT finds no thread row", n)
        elif self.weak.claim_before_insert and s[ST] not in (NONE, DEL):
            if s[ST] == IDLE:
                self.submit(n, i)
            else:
                n[b] = CLM1
            emit(f"{who}: claim statement runs before the insert", n)
        elif self.weak.seq_outside_lock:
            if n[ST] in (NONE, DEL):
                self.create(n)
            n[LAST] += 1
            n[b + SEQ], n[b + SINC] = n[LAST], n[INC]
            n[b] = INS2
            emit(f"{who}: takes seq {n[LAST]} from a sequence, not yet committed", n)
        else:
            self.submit(n, i)
            emit(f"{who}: submit transaction", n)
            if self.cfg.lazy:
                n = bytearray(s)
                self.submit(n, i, noclaim=True)
                emit(f"{who}: submit stores without claiming", n)

    def replace_row(self, s, i, emit):
        """(mutant) Writes the thread row that it found missing."""
        who = self.actors[i]
        n = bytearray(s)
        self.create(n)
        self.submit(n, i)
        emit(f"{who}: INSERT OR REPLACE thread row, then submit", n)

    def insert_late(self, s, i, emit):
        """(mutant) Stores its message after the claim that missed."""
        who = self.actors[i]
        n = bytearray(s)
        self.submit(n, i, noclaim=True)
        emit(f"{who}: inserts its message after the missed claim", n)

    def show_message(self, s, i, emit):
        """(mutant) Commits the message whose seq it took before."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        q = n[b + SEQ]
        n[self.SM + q], n[self.MS + q] = i + 1, PENDING
        n[b] = WAIT
        emit(f"{who}: commits message at seq {q}", n)

    def subscribe(self, s, i, emit):
        """(mutant) Subscribes after its check."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        n[b] = WAIT
        emit(f"{who}: subscribes to wake-ups (after its check)", n)

    def wait(self, s, i, emit):
        """One look of a waiter."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if self.cfg.notify_only and not s[b + WAKE]:
            pass
        else:
            step = self.wait_step(n, i)
            if step == ("CLAIM",):
                self.try_claim(n, i, f"{who}: waiter claims, token {n[DTOK] + 1}", emit)
            elif step:
                emit(f"{who}: {step}", n)
        if self.cfg.deadline:
            n = bytearray(s)
            self.to_end(n, i, "queued")
            emit(f"{who}: deadline passes, outcome queued", n, True)

    def claim_unchecked(self, s, i, emit):
        """(mutant) Claims after its check."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if n[ST] == IDLE:
            self.claim(n, i)
            emit(f"{who}: claims on status alone, token {n[DTOK]}", n)
        else:
            n[b] = WAIT
            emit(f"{who}: claim missed, waits", n)
