/* A second model of the core of the protocol, for Spin 6.5.
 *
 * It shares nothing with chatlock_model and has other faults: there are NO budgets. A lease or
 * window may run out under a live owner at ANY time and any number of times, handlers may fail any
 * number of times, the poller may die any number of times, a submitter may die at any step. Waiters
 * and the poller loop for ever. Liveness is checked as LTL under weak fairness.
 *
 * One atomic block is one transaction. The weakened variants are the -DNAIVE_... switches.
 */
#define NSUB 2
#define MAXA 2          /* attempts of the oldest message before it is dead-lettered */
#define MAXS 2          /* failures before anything was fetched, then the thread is parked */
#define TOKLIM 60

mtype = { idle, running, parked };
mtype st = idle;
byte tok, last, fet, done, att, stl;
byte ms[NSUB+1];        /* by seq: 1 pending, 2 answered, 3 dead */
byte own[NSUB+1];       /* message (submitter number) at seq */
byte xf, xv;            /* other store: fence, value */
byte committed;         /* bit per submitter: answered by a committed turn */
bool out[NSUB+1];       /* submitter has its outcome (or is dead) */
bool wakeup[NSUB+1];

#define MINE   (st == running && tok == my)
#define DUE    (st == idle && last > done)

inline wake_all() {
#ifdef NOTIFY_ONLY
	wakeup[1] = true; wakeup[2] = true
#else
	skip
#endif
}

inline charge() {       /* the claim ends without an answer */
	st = idle;
	if
	:: fet > done -> att++;
		if
		:: att >= MAXA -> assert(ms[done+1] == 1); ms[done+1] = 3; done++; att = 0; stl = 0;
			if :: fet < done -> fet = done :: else fi
		:: else
		fi
	:: else -> stl++;
		if :: stl >= MAXS -> st = parked :: else fi
	fi;
	wake_all()
}

inline claim() {
	st = running; tok++; assert(tok < TOKLIM);
#ifndef NAIVE_NORESET
	fet = done;
#endif
	my = tok; upto = done; seen = 0
}

inline dofetch() {
	hi = last;
	if :: att + 1 >= MAXA -> hi = done + 1 :: else fi;
	if :: hi > fet -> fet = hi :: else fi;
	q = done + 1;
	do
	:: q <= fet -> seen = seen | (1 << own[q]); q++
	:: else -> break
	od;
	upto = fet; q = 0; hi = 0
}

inline commit() {
	assert(MINE);                           /* only a valid claim commits */
	assert(upto > done);                    /* never an empty turn */
	q = done + 1;
	do
	:: q <= upto ->
		assert(ms[q] == 1);             /* answered once */
		assert(seen & (1 << own[q]));   /* and by a turn that held it */
		ms[q] = 2; committed = committed | (1 << own[q]); q++
	:: else -> break
	od;
	q = 0; done = upto; att = 0; stl = 0; st = idle; wake_all()
}

/* One turn.  Ends at label turn_over with won == 1 when it committed. */
inline turn() {
	won = 0;
#ifndef NAIVE_FENCE
	atomic { if :: xf > my -> goto turn_over :: else -> xf = my fi };
#endif
#ifdef NAIVE_NORESET
	if :: skip -> goto work :: skip fi;     /* a handler that never fetches */
#endif
	atomic { if :: MINE -> dofetch() :: else -> goto turn_over fi };
work:
	atomic { n = xv };                      /* read the other store */
	if                                      /* optional second fetch */
	:: atomic { MINE && last > upto && att + 1 < MAXA -> dofetch() }
	:: skip
	fi;
	atomic {                                /* fenced write in the other store */
		if
		:: xf > my -> goto turn_over
		:: else -> xf = my; assert(xv == n); xv++
		fi
	};
	if
	:: skip; atomic {                       /* finish */
#ifdef NAIVE_NORESET
		upto = fet;                     /* the row's fetched_seq, whoever wrote it */
#endif
		if
#ifdef NAIVE_FINISH
		:: upto > done -> commit(); won = 1
#else
		:: MINE && upto > done -> commit(); won = 1
		:: MINE && upto <= done && last > done -> charge()
		:: MINE && upto <= done && last <= done -> st = idle; wake_all()
#endif
		:: else -> skip
		fi
	   }
	:: skip; atomic {                       /* handler fails */
#ifdef NAIVE_RELEASE
		if :: st == running -> assert(tok == my); charge() :: else fi
#else
		if :: MINE -> charge() :: else fi
#endif
	   }
	fi
}

proctype Submitter(byte me) {
	byte my, upto, seen, n, q, hi, seq; bit won;
	atomic {                                /* submit: insert and try to claim, one transaction */
		last++; seq = last; ms[seq] = 1; own[seq] = me;
		if :: DUE -> claim() :: else -> goto wait fi
	};
go:
	turn();
turn_over:
	atomic { my = 0; upto = 0; seen = 0; n = 0; q = 0; hi = 0; won = 0 };
wait:
#ifdef NOTIFY_ONLY
#ifdef NAIVE_SUBSCRIBE
	atomic { if                             /* looks first ... */
	:: ms[seq] > 1 || st == parked -> goto over
	:: DUE && done < seq -> claim(); goto go
	:: else fi };
	atomic { wakeup[me] = false };          /* ... then subscribes: a wake-up in between is lost */
	wakeup[me];
#else
	atomic { wakeup[me] = false;
	if                                      /* subscribes and looks; sleeps only if nothing to do */
	:: ms[seq] > 1 || st == parked -> goto over
	:: DUE && done < seq -> claim(); goto go
	:: else fi };
	wakeup[me];
#endif
	goto wait;
#else
	if
	:: atomic { ms[seq] > 1 || st == parked -> goto over }
	:: atomic { DUE && done < seq -> claim(); goto go }
#ifndef NODIE
	:: goto dead                            /* deadline, or the process dies while waiting */
#endif
	fi;
#endif
over:
	atomic {
		/* honest outcome: answered means a committed turn answered it */
		assert(ms[seq] != 2 || (committed & (1 << me)));
	};
dead:
	out[me] = true
}

#ifndef NOPOLLER
active proctype Poller() {
	byte my, upto, seen, n, q, hi; bit won;
	do
	:: atomic { DUE -> claim() };
	   if
	   :: turn();
turn_over:    skip
	   :: skip                              /* dies right after the claim; a new poller goes on */
	   fi;
	   atomic { my = 0; upto = 0; seen = 0; n = 0; q = 0; hi = 0; won = 0 }
	od
}
#endif

active proctype Reclaimer() {
	do
	:: atomic { st == running ->
#ifdef NAIVE_ATTEMPTS
		st = idle; wake_all();
#else
		charge();
#endif
		tok++
	   }
	od
}

init { atomic { run Submitter(1); run Submitter(2) } }

#define RESOLVED ((last == NSUB && done == last && st == idle) || st == parked)
ltl resolved { <> [] RESOLVED }
ltl outcome  { <> (out[1] && out[2]) }
ltl token    { [] (done <= last && fet <= last) }
