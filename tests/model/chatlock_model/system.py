"""The transition system of a configuration."""

from __future__ import annotations

from .config import (
    ATT,
    AW,
    BAK,
    BCA,
    BCR,
    BDE,
    BEX,
    BFA,
    BFL,
    BHA,
    BHO,
    BIN,
    BLA,
    BLO,
    BMC,
    BPK,
    BRB,
    BST,
    BSU,
    DISP,
    DONE,
    DTOK,
    DUE,
    FET,
    INC,
    LAST,
    MAXT,
    RODE,
    ST,
    STALL,
    TOK,
    XF,
    XV,
    Config,
    Q,
    System,
)
from .faults import Faults
from .words import (
    AMB,
    AMB2,
    ANSWERED,
    CHK2,
    CL2,
    CLM1,
    DBW2,
    DEAD,
    DEL,
    DELIV,
    END,
    EST,
    EXTW,
    EXTW2,
    FETCH,
    FETCH2,
    FIN,
    FINR,
    HOLD,
    HUNG,
    IDLE,
    INIT2,
    INS2,
    LATE,
    LEA2,
    NONE,
    PC_NAME,
    PDEL,
    PENDING,
    POLL,
    QWORK,
    READ,
    RECV,
    RUN,
    RUNNING_PCS,
    S0,
    SEND,
    STATUS_NAME,
    SUBSCR,
    WAIT,
    WORK,
    Breach,
    Violation,
)


class Model(Faults):
    """All steps, and what must hold in every state and when nothing but faults can happen."""

    def __init__(self, cfg: Config):
        super().__init__(cfg)
        self.steps = {
            S0: self.begin,
            INIT2: self.replace_row,
            CLM1: self.insert_late,
            INS2: self.show_message,
            SUBSCR: self.subscribe,
            WAIT: self.wait,
            CHK2: self.claim_unchecked,
            POLL: self.poll_to_lease if cfg.rq else self.poll_due if cfg.due else self.poll,
            LEA2: self.lease_unseen,
            SEND: self.send,
            PDEL: self.delete_unlocked,
            LATE: self.delete_late,
            QWORK: self.take_job,
            CL2: self.claim_as_read,
            RECV: self.receive,
            EST: self.establish,
            FETCH: self.fetch,
            FETCH2: self.fetch_selected,
            READ: self.read,
            WORK: self.work,
            DBW2: self.write_unlocked,
            EXTW: self.write_elsewhere,
            EXTW2: self.write_elsewhere_untested,
            HUNG: self.hang,
            FINR: self.finish_as_read,
            FIN: self.finish,
            AMB2: self.resolve_hand_off,
            AMB: self.resolve,
            DELIV: self.deliver,
        }

    def initial(self):
        s = bytearray(self.size)
        s[BEX], s[BCR], s[BFA] = self.cfg.expire, self.cfg.crash, self.cfg.fail
        s[BAK], s[BDE], s[BCA] = self.cfg.acklost, self.cfg.delete, self.cfg.cancel
        s[BHA], s[BLO], s[BFL], s[BLA] = self.cfg.hang, self.cfg.lose, self.cfg.flush, self.cfg.lapse
        s[BHO], s[BMC], s[BRB], s[BPK] = self.cfg.handoff, self.cfg.midcancel, self.cfg.rollback, self.cfg.park
        s[BSU] = self.cfg.suspend
        s[BIN], s[BST] = self.cfg.interrupt, self.cfg.stop
        for i in range(self.actor_count):
            s[self.base[i]] = S0 if i < self.submitters else self.home(i)
        return bytes(s)

    def successors(self, s):
        """Every step that an actor may take and what may befall it, then what may befall the thread."""
        out = []

        def emit(label, n, fault=False):
            out.append((label, bytes(n), fault))

        for i, b in enumerate(self.base):
            # A step that returns True was the actor's end.
            if s[b] != END and not self.steps[s[b]](s, i, emit):
                self.befall(s, i, emit)
        self.resolve_in_range(s, emit)
        self.stop(s, emit)
        self.operate(s, emit)
        self.reclaim(s, emit)
        self.delete(s, emit)
        return out

    def check(self, n):
        """State invariants. They speak of the unweakened protocol: a mutant is judged by what
        it does to messages and callers, not by the bookkeeping it lacks."""
        if self.cfg.mut:
            return
        if n[DONE] > n[LAST] or n[FET] > n[LAST] or (n[ST] == RUN and n[FET] < n[DONE]):
            raise Violation(Breach.S_ORDER)
        if sum(1 for b in self.base if n[b] in RUNNING_PCS and self.owns(n, b)) > 1:
            raise Violation(Breach.TWO_HOLDERS)
        for q in range(1, n[LAST] + 1):
            if not n[self.SM + q]:
                raise Violation(Breach.SEQ_WITHOUT_MESSAGE)
            if n[self.MS + q] == PENDING and q <= n[DONE]:
                raise Violation(Breach.PASSED_PENDING)
            if n[self.MS + q] in (ANSWERED, DEAD) and q > n[DONE]:
                raise Violation(Breach.RESOLVED_ABOVE_DONE)
        if n[ST] not in (NONE, DEL, RUN) and n[DONE] < n[LAST] and n[self.MS + n[DONE] + 1] != PENDING:
            raise Violation(Breach.H_HEAD)
        if self.cfg.due and n[ST] == IDLE and n[LAST] > n[DONE] and not n[DUE] and n[AW] != HOLD:
            raise Violation(Breach.D_DUE_ROW)
        if n[DTOK] > n[MAXT]:
            raise Violation(Breach.TOKEN_ABOVE_LARGEST)

    def rest_error(self, s):
        """Asked when no step but faults is enabled: the system has come to rest."""
        for i in range(self.submitters):
            if s[self.base[i]] != END and not (i == self.human and s[self.base[i]] == S0 and not s[AW]):
                return Breach.SUBMITTER_WAITS
        if s[ST] == RUN:
            return Breach.CLAIMED_FOREVER
        if s[ST] == IDLE and self.cfg.pollers:
            for q in range(1, s[LAST] + 1):
                if q <= self.maxseq and s[self.SM + q] and s[self.MS + q] == PENDING:
                    return Breach.MESSAGE_UNRESOLVED
        return None

    def show(self, s):
        msgs = ",".join(
            f"{q}:m{s[self.SM + q]}{'?ADx'[s[self.MS + q]]}" for q in range(1, self.maxseq + 1) if s[self.SM + q]
        )
        acts = []
        for i in range(self.actor_count):
            token = s[self.base[i] + TOK]
            acts.append(f"{self.actors[i]}={PC_NAME[s[self.base[i]]]}" + (f"/t{token}" if token else ""))
        return (
            f"{STATUS_NAME[s[ST]]} inc={s[INC]} tok={s[DTOK]} "
            f"last={s[LAST]} fetched={s[FET]} done={s[DONE]} "
            f"att={s[ATT]}/{s[STALL]} [{msgs}] due={s[DUE]} lease={s[DISP]} jobs={s[Q]} rode={s[RODE]} "
            f"ext(f={s[XF]},v={s[XV]}) | {' '.join(acts)}"
        )


def make(cfg: Config) -> System:
    """The transition system of one configuration."""
    model = Model(cfg)
    return System(model.initial(), model.successors, model.check, model.rest_error, model.show)
