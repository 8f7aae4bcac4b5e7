"""A configuration: who takes part, how often each fault may strike, which features are in play; and a state's bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from .words import HOLD, Breach


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
    """Where each value of a state stands: the thread's row, ghosts (what only the checks know) and
    what is left of each budget; then, by configuration, its messages and the actors."""

    ST, INC, TOK, OWN, LAST, FET, DONE, ATT, STALL, SAW, BACK = range(11)
    XF, XV, XE = range(11, 14)  # other store: fence, value; ghost
    MAXT, FETC = range(14, 16)  # ghosts: largest token ever issued; bit m set once message m was handed to a turn
    BEX, BCR, BFA, BAK, BDE, BCA, BHA, BLO, BFL, BLA, BHO, BMC, BRB, BPK, BIN, BST, BSU = range(16, 33)  # budgets
    Q, DISP, LOST, DUE, RODE = range(33, 38)  # jobs; a dispatch lease in force; ghost: job lost; due row; ridden fetch
    CAN, INTR, CUP, NAMED = range(
        38, 42
    )  # cancel_token, interrupts, cancel_upto; ghost: messages that a stop has named
    AW, ASKD = range(42, 44)  # open question; ghost: the incarnation that asked
    COM = 44  # turns table: committed tokens (bit mask of 2 bytes)
    ASK = 46  # ghost: tokens that were asked to stop (bit mask of 6 bytes)
    asz = 10

    def __init__(self, cfg: Config):
        self.maxseq = cfg.submitters + (2 if "dup_bumps_seq" in cfg.mut else 0)
        self.nact = cfg.submitters + cfg.pollers
        by_seq = self.maxseq + 1
        self.SM = 52  # message number at seq (1-based)
        self.MS = self.SM + by_seq  # disposition at seq
        self.NA = self.MS + by_seq  # ghost: failed claims that held this message
        self.NIN = self.NA + by_seq  # ghost: interrupts of turns over this oldest message
        self.A = self.NIN + by_seq
        self.size = self.A + self.asz * self.nact


ST, INC, DTOK, OWN = Layout.ST, Layout.INC, Layout.TOK, Layout.OWN
LAST, FET, DONE, ATT = Layout.LAST, Layout.FET, Layout.DONE, Layout.ATT
STALL, SAW, BACK = Layout.STALL, Layout.SAW, Layout.BACK
XF, XV, XE, MAXT, FETC = Layout.XF, Layout.XV, Layout.XE, Layout.MAXT, Layout.FETC
BEX, BCR, BFA, BAK, BDE, BCA = Layout.BEX, Layout.BCR, Layout.BFA, Layout.BAK, Layout.BDE, Layout.BCA
BHA, BLO, BFL, BLA, BHO, BMC = Layout.BHA, Layout.BLO, Layout.BFL, Layout.BLA, Layout.BHO, Layout.BMC
BRB, BPK, BIN, BST, BSU = Layout.BRB, Layout.BPK, Layout.BIN, Layout.BST, Layout.BSU
Q, DISP, LOST, DUE, RODE = Layout.Q, Layout.DISP, Layout.LOST, Layout.DUE, Layout.RODE
CAN, INTR, CUP, NAMED = Layout.CAN, Layout.INTR, Layout.CUP, Layout.NAMED
AW, ASKD, COM, ASK = Layout.AW, Layout.ASKD, Layout.COM, Layout.ASK
# fields of an actor
PC, SEQ, SINC, TOK, RINC, UPTO, SEEN, NLOC, WAKE, HB = range(10)
ACTOR_SIZE = Layout.asz
