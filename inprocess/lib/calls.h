// The libc functions that the library interposes: all that read, write, wait for, end, copy or hand over a socket.
#pragma once

#define CALLS(X)                                                                                                                 \
	X(connect) X(accept) X(accept4) X(shutdown) X(getsockopt) X(setsockopt)                                                  \
	X(read) X(readv) X(preadv2) X(recv) X(recvfrom) X(recvmsg) X(recvmmsg)                                                   \
	X(write) X(writev) X(pwritev2) X(send) X(sendto) X(sendmsg) X(sendmmsg) X(sendfile) X(splice)                            \
	X(close) X(close_range) X(closefrom) X(dup) X(dup2) X(dup3) X(fcntl) X(ioctl) X(fdopen) X(fclose) X(freopen)                                  \
	X(vdprintf) X(aio_read) X(aio_write) X(lio_listio)                                                                       \
	X(fork) X(clone) X(posix_spawn) X(posix_spawnp) X(posix_spawn_file_actions_adddup2) X(system) X(popen)                                                  \
	X(execve) X(execv) X(execvp) X(execvpe) X(fexecve) X(execveat)                    \
	X(epoll_create) X(epoll_create1) X(epoll_ctl) X(epoll_wait) X(epoll_pwait) X(epoll_pwait2)                               \
	X(poll) X(ppoll) X(select) X(pselect) X(syscall)                               \
	X(sigaction) X(signal) X(prctl) X(unshare) X(setns) X(dlopen)

// Other names for these functions: fortified, for large files, and glibc's aliases.
#define ALIASES(X)                                                                                                               \
	X(__read_chk) X(__recv_chk) X(__recvfrom_chk) X(__poll_chk) X(__ppoll_chk)                                               \
	X(sendfile64) X(freopen64) X(fcntl64) X(preadv64v2) X(pwritev64v2) X(aio_read64) X(aio_write64) X(lio_listio64)                       \
	X(dprintf) X(__dprintf_chk) X(__vdprintf_chk) X(_Fork) X(daemon) X(execl) X(execle) X(execlp)                                      \
	X(__read) X(__write) X(__close) X(__send) X(__connect) X(__poll) X(__select) X(__dup2) X(__fcntl) X(__fork)
