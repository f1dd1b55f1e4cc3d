// System calls without interposition and errno: the result is the kernel's, -errno for an error.
#pragma once
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long smcgw_sys6(long n, long a, long b, long c, long d, long e, long f) {
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#elif defined(__aarch64__)
static inline long smcgw_sys6(long n, long a, long b, long c, long d, long e, long f) {
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#else
#error "architecture"
#endif

#define SYS6_(n, a, b, c, d, e, f, ...) smcgw_sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define SYS(n, ...) SYS6_(SYS_##n, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
