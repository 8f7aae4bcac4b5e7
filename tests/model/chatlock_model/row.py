"""The thread's row: what may be asked of it, and what every transaction does to it."""

from __future__ import annotations

from types import SimpleNamespace

from .config import (
    ACTOR_SIZE,
    ATT,
    AW,
    BACK,
    DISP,
    DONE,
    DTOK,
    DUE,
    FET,
    INC,
    INTR,
    LAST,
    LOST,
    NLOC,
    RINC,
    SEEN,
    SEQ,
    SINC,
    ST,
    STALL,
    TOK,
    UPTO,
    WAKE,
    Config,
    Layout,
)
from .mutants import MUTANTS
from .words import ANSWERED, DEL, END, HOLD, IDLE, NONE, PENDING, POLL, QWORK, RUN, S0, WAIT, Breach, Violation


class Row:
    """The rules over the row that the transactions of all actors share."""

    def __init__(self, cfg: Config):
        layout = Layout(cfg)
        self.cfg, self.maxseq, self.size = cfg, layout.maxseq, layout.size
        self.SM, self.MS, self.NAT, self.NIN = layout.SM, layout.MS, layout.NA, layout.NIN
        self.submitters, self.actor_count = cfg.submitters, layout.nact
        self.base = [layout.A + i * layout.asz for i in range(layout.nact)]
        self.actors = [f"S{i + 1}" if i < cfg.submitters else f"P{i - cfg.submitters + 1}" for i in range(layout.nact)]
        self.human = cfg.submitters - 1 if cfg.suspend else layout.nact
        assert cfg.mut <= set(MUTANTS), cfg.mut - set(MUTANTS)
        self.weak = weak = SimpleNamespace(**{name: name in cfg.mut for name in MUTANTS})
        self.implicit_upto = weak.finish_implicit_upto or weak.fetched_not_reset or weak.fetch_select_then_update

    def owns(self, n, b):
        return n[ST] == RUN and n[DTOK] == n[b + TOK] and n[INC] == n[b + RINC]

    def create(self, n):
        if n[ST] not in (NONE, DEL):
            raise Violation(Breach.SECOND_INIT)
        n[INC] += 1
        n[ST] = IDLE
        n[LAST] = n[FET] = n[DONE] = n[ATT] = n[STALL] = n[INTR] = n[BACK] = 0

    def waits(self, n):
        return n[ST] == IDLE and n[LAST] > n[DONE] and (n[AW] != HOLD or self.weak.question_holds_nothing)

    def claimable(self, n, seq=0):
        return self.waits(n) and not n[BACK] and (not seq or seq > n[DONE])

    def fetch_limit(self, n):
        # the last attempt is made with the oldest message alone
        if not self.weak.dead_letter_whole_batch and n[ATT] + 1 >= self.cfg.max_attempts:
            return n[DONE] + 1
        return n[LAST]

    def visible_max(self, n):
        if not self.weak.seq_outside_lock:
            return n[LAST]
        hi = n[DONE]
        for q in range(1, self.maxseq + 1):
            if n[self.SM + q] and q > hi:
                hi = q
        return hi

    def visible_due(self, n):
        return self.visible_max(n) > n[DONE]

    def known(self, n, i):
        """The seq of the actor's message, or 0."""
        return max((q for q in range(1, n[LAST] + 1) if n[self.SM + q] == i + 1), default=0)

    def settle(self, n, skip=False):
        """Every transaction that may leave the thread idle with work upserts its due row."""
        if self.cfg.due and not skip and n[ST] == IDLE and n[LAST] > n[DONE] and n[AW] != HOLD:
            n[DUE] = 1
            if not self.weak.due_keeps_lease:
                n[DISP] = n[LOST] = 0

    def drop_due(self, n):
        n[DUE] = n[DISP] = n[LOST] = 0

    def lose_job(self, n):
        """What was sent comes to nothing: where a dispatch lease is in force, its end is all that helps."""
        n[LOST] = n[DISP]

    def advance(self, n, skip=False):
        """Invariant H: not running => done_seq == last_seq or message done_seq+1 is pending."""
        if skip:
            return
        d = n[DONE]
        while n[DONE] < n[LAST] and n[self.MS + n[DONE] + 1] != PENDING:
            n[DONE] += 1
        if n[DONE] != d:
            n[INTR] = 0
            n[FET] = max(n[FET], n[DONE])
            if not self.weak.mid_attempts_kept:
                n[ATT] = n[STALL] = n[BACK] = 0

    def wake(self, n):
        """A due idle thread exists: wake waiters that are subscribed."""
        if not self.cfg.notify_only:
            return
        for i in range(self.submitters):
            if n[self.base[i]] == WAIT and not n[self.base[i] + WAKE]:
                n[self.base[i] + WAKE] = 1
                if self.weak.wake_one_no_recheck:
                    return

    def home(self, i):
        return QWORK if self.cfg.rq and i >= self.submitters + self.cfg.dispatchers else POLL

    def reset_runner(self, n, b):
        n[b + TOK] = n[b + RINC] = n[b + UPTO] = n[b + SEEN] = n[b + NLOC] = 0

    def to_end(self, n, i, outcome):
        b = self.base[i]
        if i >= self.submitters:
            self.reset_runner(n, b)
            n[b] = self.home(i)
            return
        sq, inc = n[b + SEQ], n[b + SINC]
        same = inc == n[INC] and n[ST] not in (NONE, DEL)
        answered = sq and n[self.SM + sq] == i + 1 and n[self.MS + sq] == ANSWERED
        if outcome == "answered" and same and not answered:
            raise Violation(Breach.TOLD_ANSWERED)
        if outcome == "failed" and same and n[self.MS + sq] == ANSWERED:
            raise Violation(Breach.TOLD_FAILED)
        for f in range(ACTOR_SIZE):
            n[b + f] = 0
        n[b] = END

    def abort(self, n, i):
        """Lost or failed turn: the poller goes on, a submitter waits on."""
        b = self.base[i]
        self.reset_runner(n, b)
        if i >= self.submitters:
            n[b] = self.home(i)
        elif self.weak.abort_forgets_message:
            self.to_end(n, i, "failed")
        else:
            n[b] = WAIT
            n[b + WAKE] = 1 if not self.weak.wake_one_no_recheck else 0

    def die(self, n, i, retry):
        b = self.base[i]
        for f in range(ACTOR_SIZE):
            n[b + f] = 0
        n[b] = self.home(i) if i >= self.submitters else S0 if retry else END
