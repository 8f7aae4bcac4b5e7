"""Pollers, dispatchers and their workers: whoever begins the turn of a thread that is due."""

from __future__ import annotations

from .config import BCR, DISP, DTOK, DUE, ST, TOK, Q
from .submitters import Submitters
from .words import CL2, FETCH, IDLE, LEA2, PDEL, POLL, SEND, Breach, Violation


class Pollers(Submitters):
    """The steps of pollers up to their claim."""

    def lease(self, n, i):
        """Leaves the due thread to a worker: until the lease lapses no dispatcher does so again."""
        if n[DISP]:
            raise Violation(Breach.LEASED_TWICE)
        n[DISP], n[self.base[i]] = 1, SEND
        if self.weak.dispatch_deletes_due:
            self.drop_due(n)

    def poll_to_lease(self, s, i, emit):
        """A dispatcher looks for a due thread that is not dispatched."""
        b, who = self.base[i], self.actors[i]
        if s[DUE] and not s[DISP] and (self.claimable(s) or not self.waits(s)):
            n = bytearray(s)
            if self.weak.lease_without_test:
                n[b] = LEA2
                emit(f"{who}: sees a due row that is not dispatched", n)
            elif self.claimable(n):
                self.lease(n, i)
                emit(f"{who}: leases the due row", n)
            else:
                self.drop_due(n)
                emit(f"{who}: deletes a due row under the thread lock", n)

    def lease_unseen(self, s, i, emit):
        """(mutant) Leases the due row that it saw before."""
        who = self.actors[i]
        n = bytearray(s)
        self.lease(n, i)
        emit(f"{who}: leases the due row as it was seen", n)

    def send(self, s, i, emit):
        """The job of a lease is sent."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        n[Q] = min(2, n[Q] + 1)
        n[b] = POLL
        emit(f"{who}: sends a job", n)

    def poll_due(self, s, i, emit):
        """A poller looks for a due row."""
        b, who = self.base[i], self.actors[i]
        if s[DUE] and (self.claimable(s) or not self.waits(s)):
            n = bytearray(s)
            if self.claimable(n):
                self.drop_due(n)
                self.claim(n, i)
                emit(f"{who}: poller claims by due row, token {n[DTOK]}", n)
            elif self.weak.due_deleted_without_lock:
                n[b] = PDEL
                emit(f"{who}: reads the thread without a lock: nothing to do", n)
            else:
                self.drop_due(n)
                emit(f"{who}: deletes a due row under the thread lock", n)

    def delete_unlocked(self, s, i, emit):
        """(mutant) Deletes the due row that it saw before."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        self.drop_due(n)
        n[b] = POLL
        emit(f"{who}: deletes the due row, no lock", n)

    def delete_late(self, s, i, emit):
        """(mutant) Deletes the due row of a claim that is made."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        self.drop_due(n)
        n[b] = FETCH
        emit(f"{who}: deletes the due row after its claim", n)
        n = bytearray(s)
        n[b] = FETCH
        emit(f"{who}: goes on", n)

    def poll(self, s, i, emit):
        """A poller that sees every thread."""
        b, who = self.base[i], self.actors[i]
        if self.claimable(s) or (self.weak.seq_outside_lock and s[ST] == IDLE and self.visible_due(s)):
            n = bytearray(s)
            if self.weak.claim_read_then_write:
                n[b] = CL2
                n[b + TOK] = n[DTOK]
                emit(f"{who}: reads status idle, token {n[DTOK]}", n)
            else:
                self.try_claim(n, i, f"{who}: poller claims, token {n[DTOK] + 1}", emit)

    def take_job(self, s, i, emit):
        """A worker takes a job."""
        who = self.actors[i]
        if s[Q]:
            n = bytearray(s)
            n[Q] -= 1
            if self.claimable(n):
                self.drop_due(n)
                self.try_claim(n, i, f"{who}: takes the job, claims, token {n[DTOK] + 1}", emit)
            elif self.waits(n):
                emit(f"{who}: takes the job before the thread may start, leaves the due row", n)
            else:
                self.drop_due(n)
                emit(f"{who}: takes the job, nothing to claim, deletes the due row", n)
            if s[BCR]:
                n = bytearray(s)
                n[BCR] -= 1
                n[Q] -= 1
                self.lose_job(n)
                emit(f"{who}: takes the job and is KILLED", n, True)

    def claim_as_read(self, s, i, emit):
        """(mutant) Claims what it read before."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        self.claim_naive(n, i)
        emit(f"{who}: writes status running, token {n[b + TOK]}", n)
