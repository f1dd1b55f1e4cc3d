// The functions behind the interposed ones: libc's, or those of another preloaded library.
#pragma once
#include <aio.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "calls.h"

// Some libcs that the library is built with do not declare these.
extern int close_range(unsigned from, unsigned to, int flags);
extern void closefrom(int from);
extern int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags);
extern int epoll_pwait2(int ep, struct epoll_event *v, int max, const struct timespec *timeout, const sigset_t *mask);
extern ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int flags);
extern ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t at, int flags);

#define NEXT(name) extern void *_Atomic smcgw_next_##name;
CALLS(NEXT)
#undef NEXT

// REAL is the next definition of a function, looked up once. HAS tells whether there is one: older libcs lack some.
#define REAL(name) (*(__typeof__(&name))smcgw_next(&smcgw_next_##name, #name))
#define HAS(name) (smcgw_next(&smcgw_next_##name, #name) != 0)
static inline void *smcgw_next(void *_Atomic *at, const char *name) {
	void *p = atomic_load_explicit(at, memory_order_relaxed);
	if (__builtin_expect(!p, 0)) {
#ifdef SMCI_VERSION_OF // glibc.h
		if (!dlsym) p = __libc_dlsym(__libc_dlopen_mode("libc.so.6", (int)(RTLD_LAZY | 0x80000000)), name);
		else
#endif
		p = dlsym(RTLD_NEXT, name);
		atomic_store_explicit(at, p, memory_order_relaxed);
	}
	return p;
}
