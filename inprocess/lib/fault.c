// Faults in memory that the program passed. The kernel answers EFAULT for such memory; a copy in this process would instead end the program
// by a signal. So our handlers of SIGSEGV and SIGBUS come before the program's own, and turn a fault in a copy into an error of that copy.
// Each copy pays a few stores for it. The program sees only the handlers that it has set itself.
#include "lib.h"

#include <ucontext.h>

#include "real.h"

__thread struct guard *smcgw_guard;

static const int numbers[2] = {SIGSEGV, SIGBUS};
static struct sigaction mine[2]; // the program's actions
static _Atomic bool catching;
static atomic_flag changing = ATOMIC_FLAG_INIT;

static struct sigaction *of(int s) { return s == SIGSEGV ? &mine[0] : s == SIGBUS ? &mine[1] : 0; }

// covers tells whether a fault is the copy's. For an address outside of the address space the kernel gives no address.
static bool covers(const struct guard *g, const siginfo_t *i) {
	uintptr_t at = (uintptr_t)i->si_addr;
	if (i->si_code <= 0) return false; // sent by kill() and the like
	if (i->si_code == SI_KERNEL) return true;
	for (int k = 0; k < g->nv; k++)
		if (at - (uintptr_t)g->v[k].iov_base < g->v[k].iov_len) return true;
	return false;
}

static void set(int s, const struct sigaction *a) { REAL(sigaction)(s, a, 0); }

static void caught(int s, siginfo_t *i, void *context);

// ours returns the action to install for one of the program's.
static struct sigaction ours(const struct sigaction *a) {
	struct sigaction r = *a;
	if (a->sa_handler == SIG_IGN) return r;
	if (a->sa_handler == SIG_DFL) r.sa_flags = SA_NODEFER | SA_RESTART;
	r.sa_flags |= SA_SIGINFO;
	r.sa_sigaction = caught;
	return r;
}

static void caught(int s, siginfo_t *i, void *context) {
	struct guard *g = smcgw_guard;
	struct sigaction *at = of(s), a = *at, back;
	if (g && covers(g, i)) {
		if (a.sa_flags & SA_RESETHAND) {
			back = ours(&a);
			set(s, &back);
		}
		SYS(rt_sigprocmask, SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, 0, _NSIG / 8);
		smcgw_guard = g->outer;
		__builtin_longjmp(g->at, 1);
	}
	if (a.sa_handler == SIG_DFL || a.sa_handler == SIG_IGN) { // the instruction faults again, and the kernel ends the program
		back = (struct sigaction){.sa_handler = SIG_DFL};
		set(s, &back);
		long self = SYS(gettid);
		if (i->si_code <= 0) SYS(tkill, self, s);
		return;
	}
	if (a.sa_flags & SA_RESETHAND) *at = (struct sigaction){.sa_handler = SIG_DFL};
	a.sa_sigaction(s, i, context);
}

// begin and end make a change atomic. Signals are blocked between, or a handler could wait for the lock that its own thread holds.
static void begin(uint64_t *mask) {
	uint64_t all = ~0ull;
	SYS(rt_sigprocmask, SIG_SETMASK, &all, mask, _NSIG / 8);
	while (atomic_flag_test_and_set_explicit(&changing, memory_order_acquire)) {}
}
static void end(const uint64_t *mask) {
	atomic_flag_clear_explicit(&changing, memory_order_release);
	SYS(rt_sigprocmask, SIG_SETMASK, mask, 0, _NSIG / 8);
}

void smcgw_catch(void) {
	uint64_t mask;
	if (get(&catching)) return;
	begin(&mask);
	for (int k = 0; k < 2 && !get(&catching); k++) {
		if (REAL(sigaction)(numbers[k], 0, &mine[k])) continue;
		struct sigaction a = ours(&mine[k]);
		set(numbers[k], &a);
	}
	put(&catching, true);
	end(&mask);
}

void smcgw_catch_forked(void) { atomic_flag_clear(&changing); }

int smcgw_sigaction(int s, const struct sigaction *a, struct sigaction *old) {
	struct sigaction *at = of(s), was, next;
	uint64_t mask;
	if (likely(!at) || !get(&catching) || (!get(&smcgw.apart) && !smcgw_ours())) return REAL(sigaction)(s, a, old);
	if (a) next = *a;
	begin(&mask);
	was = *at;
	int r = 0;
	if (a) {
		struct sigaction k = ours(&next);
		r = REAL(sigaction)(s, &k, 0);
		if (!r) *at = next;
	}
	end(&mask);
	if (!r && old) *old = was;
	return r;
}

static void __attribute__((noinline)) move(void *to, const void *from, size_t n) { memcpy(to, from, n); }
bool __attribute__((noinline)) smcgw_move(void *to, const void *from, size_t n) {
	GUARDED(((struct iovec[2]){{to, n}, {(void *)(uintptr_t)from, n}}), 2, move(to, from, n));
	return true;
}

static void __attribute__((noinline)) look_through(const volatile char *p, size_t n) {
	for (size_t i = 0; i < n; i += 4096) (void)p[i];
	if (n) (void)p[n - 1];
}
bool __attribute__((noinline)) smcgw_touch(const void *p, size_t n) {
	GUARDED((&(struct iovec){(void *)(uintptr_t)p, n}), 1, look_through(p, n));
	return true;
}
