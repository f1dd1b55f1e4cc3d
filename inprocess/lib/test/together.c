// If one process holds both ends of a connection, each end maps the other's memory at a second address. ThreadSanitizer knows a word by its
// address and would not see that the ends share it. So this file maps a file that is mapped already at the same address again. It uses raw
// system calls, so that the sanitizer does not see the new mappings. Link with --wrap=mmap,--wrap=munmap.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 4096

void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from);
int __real_munmap(void *at, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from);
int __wrap_munmap(void *at, size_t n);

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct {
	ino_t file;
	void *at;
	size_t n;
	int uses;
	int prot;
} mapped[MOST];

// fork() may run while another thread holds the lock. Holding it across fork() leaves the child with a lock that it can release.
static void hold(void) { pthread_mutex_lock(&mu); }
static void let_go(void) { pthread_mutex_unlock(&mu); }
__attribute__((constructor)) static void forks(void) { pthread_atfork(hold, let_go, let_go); }

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from) {
	struct stat s;
	void *p = 0;
	int none = -1;
	if (at || fd < 0 || from || !(flags & MAP_SHARED) || syscall(SYS_fstat, fd, &s) < 0) return __real_mmap(at, n, prot, flags, fd, from);
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MOST && !p; i++) {
		if (!mapped[i].uses && none < 0) none = i;
		if (!mapped[i].uses || mapped[i].file != s.st_ino || mapped[i].n != n) continue;
		p = mapped[i].at;
		mapped[i].uses++;
		if ((mapped[i].prot | prot) == mapped[i].prot) continue;
		mapped[i].prot |= prot; // this descriptor may be writable where the first was not: remap the same pages in place
		if (syscall(SYS_mmap, p, n, mapped[i].prot, flags | MAP_FIXED, fd, 0) == -1) p = MAP_FAILED;
	}
	if (!p) {
		p = __real_mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p != MAP_FAILED && syscall(SYS_mmap, p, n, prot, flags | MAP_FIXED, fd, 0) == -1) p = MAP_FAILED;
		if (p != MAP_FAILED && none >= 0) {
			mapped[none].file = s.st_ino;
			mapped[none].at = p;
			mapped[none].n = n;
			mapped[none].uses = 1;
			mapped[none].prot = prot;
		}
	}
	pthread_mutex_unlock(&mu);
	return p;
}

int __wrap_munmap(void *at, size_t n) {
	int used = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MOST; i++)
		if (mapped[i].uses && mapped[i].at == at && mapped[i].n == n) used = --mapped[i].uses;
	if (!used) used = __real_munmap(at, n);
	else used = 0;
	pthread_mutex_unlock(&mu);
	return used;
}
