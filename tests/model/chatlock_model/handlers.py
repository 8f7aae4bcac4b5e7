"""A turn in its handler: it fetches, and writes in this database and in another store."""

from __future__ import annotations

from .config import BAK, DONE, DTOK, FET, INC, LAST, NLOC, RINC, RODE, SEEN, TOK, UPTO, XE, XF, XV
from .pollers import Pollers
from .words import DBW2, EXTW, EXTW2, FETCH, FETCH2, FIN, READ, WORK, Breach, Violation


class Handlers(Pollers):
    """The steps of a turn between its claim and its finish."""

    def ext_write(self, n, i):
        b = self.base[i]
        if n[XE] > n[b + TOK]:
            raise Violation(Breach.WRITE_BEHIND_FENCE)
        if n[XV] != n[b + NLOC]:
            raise Violation(Breach.LOST_UPDATE)
        n[XF] = n[b + TOK]
        n[XE] = max(n[XE], n[XF])
        n[XV] += 1
        n[b] = FIN

    def receive(self, s, i, emit):
        """The answer of a claim, or of a hand-off, reaches the process."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if not self.owns(n, b):
            self.abort(n, i)
            emit(f"{who}: answer of a claim that is already lost", n)
        else:
            self.hand_out(n, b, n[DONE], n[b + UPTO])
            n[b] = WORK
            emit(f"{who}: receives claim and batch up to {n[b + UPTO]}", n)

    def establish(self, s, i, emit):
        """The fence is raised in the other store."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if n[XF] > n[b + TOK]:
            self.abort(n, i)
            emit(f"{who}: fence refused (newer holder), turn lost", n)
        else:
            n[XF] = n[b + TOK]
            n[XE] = max(n[XE], n[XF])
            n[b] = FETCH
            emit(f"{who}: establishes fence {n[XF]} in the other store", n)

    def fetch(self, s, i, emit):
        """The first fetch."""
        b, who = self.base[i], self.actors[i]
        if self.cfg.nofetch:
            n = bytearray(s)
            n[b] = FIN
            emit(f"{who}: handler never fetches", n)
        n = bytearray(s)
        if self.weak.fetch_select_then_update:
            hi = n[LAST]
            n[b + UPTO] = hi
            self.hand_out(n, b, n[DONE], hi)
            n[b] = FETCH2
            emit(f"{who}: SELECT messages up to {hi}", n)
        elif not self.owns(n, b):
            self.abort(n, i)
            emit(f"{who}: fetch refused, turn lost", n)
        else:
            hi = min(self.visible_max(n), self.fetch_limit(n))
            n[FET] = hi
            n[RODE] = 0
            n[b + UPTO] = hi
            for q in range(n[DONE] + 1, hi + 1):
                if n[self.SM + q]:
                    self.hand_out(n, b, q - 1, q)
            n[b] = READ if self.cfg.extstore else WORK
            emit(f"{who}: fetch up to seq {hi}", n)
            if s[BAK]:
                n = bytearray(s)
                n[BAK] -= 1
                n[FET] = min(self.visible_max(n), self.fetch_limit(n))
                n[b] = READ if self.cfg.extstore else WORK
                emit(f"{who}: fetch commits but its answer is lost; handler goes on", n, True)

    def fetch_selected(self, s, i, emit):
        """(mutant) Writes fetched_seq after it selected."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if not self.owns(n, b):
            self.abort(n, i)
            emit(f"{who}: fetch refused, turn lost", n)
        else:
            n[FET] = n[LAST]
            n[b] = READ if self.cfg.extstore else WORK
            emit(f"{who}: UPDATE fetched_seq = max(seq) = {n[FET]}", n)

    def read(self, s, i, emit):
        """The handler reads the other store."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        n[b + NLOC] = n[XV]
        n[b] = WORK
        emit(f"{who}: reads value {n[XV]} in the other store", n)

    def work(self, s, i, emit):
        """The handler may be told to stop, fetch again, write in the same database; True if its message kills it."""
        b, who = self.base[i], self.actors[i]
        if self.owns(s, b) and self.asked(s):
            n = bytearray(s)
            self.stopped(n)
            self.abort(n, i)
            emit(f"{who}: sees that it is asked to stop, releases", n)
        if s[RODE] and self.owns(s, b) and self.cfg.ride:
            n = bytearray(s)
            n[RODE] = 0
            emit(f"{who}: first heartbeat", n)
        poisoned = self.cfg.poison and (s[b + SEEN] >> self.cfg.poison) & 1
        if poisoned:
            n = bytearray(s)
            self.die(n, i, retry=False)
            emit(f"{who}: poison message kills the process", n)
            return True
        if (
            self.cfg.midfetch
            and self.owns(s, b)
            and self.fetch_limit(s) > s[b + UPTO]
            and not self.weak.seq_outside_lock
            and s[LAST] > s[b + UPTO]
        ):
            n = bytearray(s)
            hi = min(n[LAST], self.fetch_limit(n))
            self.hand_out(n, b, n[b + UPTO], hi)
            n[FET] = n[b + UPTO] = hi
            emit(f"{who}: fetches again, up to seq {hi}", n)
            if s[BAK]:
                n = bytearray(s)
                n[BAK] -= 1
                n[FET] = hi
                emit(f"{who}: second fetch commits, answer lost", n, True)
        n = bytearray(s)
        ok = self.owns(n, b)
        if self.weak.fence_token_only:
            ok = n[DTOK] == n[b + TOK] and n[INC] == n[b + RINC]
        if not ok:
            self.abort(n, i)
            emit(f"{who}: fenced write refused, turn lost", n)
        elif self.weak.fence_select_without_lock:
            n[b] = DBW2
            emit(f"{who}: plain SELECT says the claim is mine", n)
        else:
            if not self.owns(n, b):
                raise Violation(Breach.WRITE_AFTER_LOSS)
            n[b] = EXTW if self.cfg.extstore else FIN
            emit(f"{who}: fenced write in the same database", n)
        return False

    def write_unlocked(self, s, i, emit):
        """(mutant) Writes after its test of the fence."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if not self.owns(n, b):
            raise Violation(Breach.WRITE_AFTER_LOSS)
        n[b] = EXTW if self.cfg.extstore else FIN
        emit(f"{who}: writes", n)

    def write_elsewhere(self, s, i, emit):
        """The handler writes to the other store."""
        b, who = self.base[i], self.actors[i]
        n = bytearray(s)
        if n[XF] > n[b + TOK]:
            self.abort(n, i)
            emit(f"{who}: other store refuses, turn lost", n)
        elif self.weak.fence_check_then_write:
            n[b] = EXTW2
            emit(f"{who}: reads fence, it is not newer", n)
        else:
            self.ext_write(n, i)
            emit(f"{who}: writes the other store under fence {n[b + TOK]}", n)

    def write_elsewhere_untested(self, s, i, emit):
        """(mutant) Writes after its test of the other store's fence."""
        who = self.actors[i]
        n = bytearray(s)
        self.ext_write(n, i)
        emit(f"{who}: writes the other store", n)

    def hang(self, s, i, emit):
        """A hung handler never moves again by itself; its heartbeat learns of the loss."""
        b, who = self.base[i], self.actors[i]
        # never moves again by itself; its heartbeat learns of the loss
        if not self.owns(s, b):
            n = bytearray(s)
            self.abort(n, i)
            emit(f"{who}: heartbeat matches 0 rows, hung turn is cancelled", n)
