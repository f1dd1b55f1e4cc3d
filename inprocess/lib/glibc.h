// The glibc build includes this first. Since 2.34 the functions of libpthread and libdl are in libc, under new symbol versions. By asking
// for the old versions, weakly, the library needs libc alone and loads into older programs, too. If those have libpthread, all is as usual;
// if not, there are no locks between processes, and nothing is promoted. Symbols that libc itself had before 2.34 need no line here.
#pragma once

#define SMCI_TEXT(x) #x
#if defined __x86_64__
#define SMCI_VERSION_OF(name, x86) _Pragma(SMCI_TEXT(weak name)) __asm__(".symver " #name ", " #name "@GLIBC_" x86)
#elif defined __aarch64__ // on arm64 all of these came with its first release, 2.17
#define SMCI_VERSION_OF(name, x86) _Pragma(SMCI_TEXT(weak name)) __asm__(".symver " #name ", " #name "@GLIBC_2.17")
#endif

SMCI_VERSION_OF(dlsym, "2.2.5");
SMCI_VERSION_OF(pthread_mutex_trylock, "2.2.5");
SMCI_VERSION_OF(pthread_mutex_timedlock, "2.2.5");
SMCI_VERSION_OF(pthread_mutexattr_init, "2.2.5");
SMCI_VERSION_OF(pthread_mutexattr_settype, "2.2.5");
SMCI_VERSION_OF(pthread_key_create, "2.2.5");
SMCI_VERSION_OF(pthread_setspecific, "2.2.5");
SMCI_VERSION_OF(pthread_mutexattr_setpshared, "2.2.5");
SMCI_VERSION_OF(pthread_mutexattr_setrobust, "2.12");
SMCI_VERSION_OF(pthread_mutex_consistent, "2.12");
SMCI_VERSION_OF(pthread_testcancel, "2.2.5");
SMCI_VERSION_OF(__pthread_register_cancel, "2.3.3");
SMCI_VERSION_OF(__pthread_unregister_cancel, "2.3.3");
SMCI_VERSION_OF(__pthread_unwind_next, "2.3.3");

// Used if there is no libdl, either.
extern void *__libc_dlopen_mode(const char *name, int mode) __attribute__((weak));
extern void *__libc_dlsym(void *of, const char *name) __attribute__((weak));
