"""The end of a turn: finish, hand-off, failure, and answers that never came."""

from __future__ import annotations

from .config import (
    BAK,
    BFA,
    BHO,
    BSU,
    COM,
    DONE,
    DTOK,
    FET,
    INC,
    LAST,
    MAXT,
    NLOC,
    OWN,
    RINC,
    RODE,
    SEEN,
    SEQ,
    ST,
    TOK,
    UPTO,
    WAKE,
)
from .handlers import Handlers
from .words import AMB, AMB2, DEL, DELIV, FETCH, FIN, FINR, IDLE, RECV, RUN, RUNNING_PCS, WAIT, Breach, Violation


class Finishes(Handlers):
    """The steps of a turn from its finish to its reply."""

    def finish_as_read(self, s, i, emit):
        """(mutant) Finishes with the last_seq that it read before."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if self.owns(n, b) and n[b + UPTO] > n[DONE]:
            self.commit(n, i)
            n[b] = DELIV
            emit(f"{who}: finish commits with the last_seq read before", n)
        else:
            self.abort(n, i)
            emit(f"{who}: finish matches 0 rows, turn lost", n)

    def finish(self, s, i, emit):
        """Finish, alone, with a hand-off or with a question; or fail."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if self.weak.reply_before_finish and not self.owns(n, b):
            raise Violation(Breach.REPLY_OF_A_LOSER)
        if self.weak.finish_unconditional:
            self.commit(n, i)
            n[b] = DELIV
            emit(f"{who}: finish without token test", n)
        elif not self.owns(n, b) or (n[b + UPTO] > n[FET] and not self.implicit_upto):
            self.abort(n, i)
            emit(f"{who}: finish matches 0 rows, turn lost", n)
        elif (n[FET] if self.implicit_upto else n[b + UPTO]) <= n[DONE] and not self.weak.check_then_claim:
            # nothing received: release without a reply
            if n[LAST] > n[DONE]:
                self.charge(n)
            else:
                n[ST], n[OWN] = IDLE, 0
            self.abort(n, i)
            emit(f"{who}: empty turn released, no reply", n)
        elif self.weak.due_from_unlocked_last_seq:
            n[b + NLOC] = n[LAST]
            n[b] = FINR
            emit(f"{who}: finish reads last_seq in its snapshot", n)
        elif i >= self.submitters and s[BHO] and s[LAST] > s[b + UPTO]:
            self.commit(n, i)
            if n[ST] == IDLE and n[LAST] > n[DONE]:
                n[BHO] -= 1
                self.drop_due(n)
                old = n[b + TOK]
                n[ST], n[OWN] = RUN, i + 1
                if not self.weak.handoff_same_token:
                    n[DTOK] += 1
                    n[MAXT] = max(n[MAXT], n[DTOK])
                n[FET] = self.fetch_limit(n)
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
            if s[BAK] and self.cfg.handoff:
                n2 = bytearray(s)
                n2[BAK] -= 1
                n2[b] = AMB
                emit(f"{who}: finish sent, connection lost before commit", n2, True)
            self.commit(n, i)
            n[b] = DELIV
            emit(f"{who}: finish commits, answered up to {n[DONE]}", n)
            if s[BAK]:
                n = bytearray(n)
                n[BAK] -= 1
                n[b] = AMB
                emit(f"{who}: finish commits, acknowledgement lost", n, True)
        self.finish_with_question(s, i, emit)
        self.fail(s, i, emit)

    def finish_with_question(self, s, i, emit):
        """Finish that leaves a question open."""
        b, who = self.base[i], self.actors[i]
        if s[BSU] and self.owns(s, b) and s[DONE] < s[b + UPTO] <= s[FET]:
            n = bytearray(s)
            n[BSU] -= 1
            self.commit(n, i, self.cfg.awaiting)
            n[b] = DELIV
            emit(f"{who}: finish commits with a question", n, True)

    def fail(self, s, i, emit):
        """The handler fails."""
        b, who = self.base[i], self.actors[i]
        if s[BFA]:
            n = bytearray(s)
            n[BFA] -= 1
            if self.owns(n, b):
                if self.asked(n):
                    self.stopped(n)
                else:
                    self.charge(n, True)
                self.abort(n, i)
                emit(f"{who}: handler fails, released without advancing", n, True)
            elif self.weak.release_unconditional and n[ST] == RUN:
                ob = self.base[n[OWN] - 1] if n[OWN] else None
                if ob is not None and n[ob] in RUNNING_PCS and self.owns(n, ob):
                    raise Violation(Breach.RELEASED_ANOTHERS_CLAIM)
                n[ST], n[OWN] = IDLE, 0
                self.abort(n, i)
                emit(f"{who}: handler fails, unconditional release", n, True)
            else:
                self.abort(n, i)
                emit(f"{who}: handler fails, claim already lost", n, True)

    def resolve_hand_off(self, s, i, emit):
        """Asks what became of a finish with hand-off whose answer never came."""
        b, who = self.base[i], self.actors[i]
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
            self.abort(n, i)
            emit(f"{who}: reads turns: committed, goes home", n)

    def resolve(self, s, i, emit):
        """Asks what became of a finish whose answer never came."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        t = n[b + TOK]
        if self.weak.ack_lost_means_failed:
            if i < self.submitters:
                self.to_end(n, i, "failed")
            else:
                self.abort(n, i)
            emit(f"{who}: takes the lost acknowledgement for a failure", n)
        elif (n[COM + (t >> 3)] >> (t & 7)) & 1:
            if self.cfg.handoff and n[INC] == n[b + RINC] and n[ST] != DEL and n[b + UPTO] > n[DONE]:
                raise Violation(Breach.REPLY_NEVER_STORED)
            n[b] = DELIV
            emit(f"{who}: reads its turns row: committed", n)
        else:
            n[b] = FIN
            emit(f"{who}: reads its turns row: not committed, retries", n)

    def deliver(self, s, i, emit):
        """The reply is handed over."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if i < self.submitters and n[b + SEQ] > n[b + UPTO] and not self.weak.own_turn_means_answered:
            # a limited batch did not reach this caller's own message
            self.reset_runner(n, b)
            n[b], n[b + WAKE] = WAIT, 1
            emit(f"{who}: stores the reply to earlier messages, waits for its own", n)
        else:
            # own commit covered own message (UPTO is what was committed)
            own = n[b + SEQ] <= n[b + UPTO]
            self.to_end(n, i, "own" if own else "answered")
            emit(f"{who}: delivers the stored reply", n)
