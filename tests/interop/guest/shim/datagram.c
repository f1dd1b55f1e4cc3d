/*
 * An LD_PRELOAD library for udpong, around two faults of librdmacm and one of
 * its own.
 *
 * The library hands the first datagram of a new peer to its application by sending it to
 * its own queue pair, and names the way there by LID alone. Ports of Ethernet
 * have no LIDs; the kernel wants a GID and answers EINVAL, with which the
 * application's rconnect() or rsendto() fails. So an address handle without a
 * GID gets the first of the port's own that routers know, and leads back to the
 * port.
 *
 * Its rpoll() with a timeout that is over before it comes to sleep goes without
 * signing off, for which a later call waits for ever. So it is never called
 * with one.
 *
 * udpong waits for a millisecond for an answer and then asks again, with what it
 * received last: after an answer that is late it may ask for ever what it does
 * not want to know. In an emulated machine they are late, so it waits longer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

typedef struct ibv_ah *(*create_ah_func)(struct ibv_pd *, struct ibv_ah_attr *);
typedef int (*query_gid_func)(struct ibv_context *, uint8_t, int, union ibv_gid *);

/* routable tells a GID from an unused entry and from a link-local one. */
static int routable(const union ibv_gid *gid)
{
	for (size_t i = 0; i < sizeof gid->raw; i++)
		if (gid->raw[i] != 0)
			return gid->raw[0] != 0xfe || (gid->raw[1] & 0xc0) != 0x80;
	return 0;
}

/* lead_back completes an address that has a port and nothing else. */
static int lead_back(struct ibv_context *device, struct ibv_ah_attr *to)
{
	query_gid_func query = (query_gid_func)dlsym(RTLD_NEXT, "ibv_query_gid");

	for (int i = 0; query && i < 256; i++) {
		if (query(device, to->port_num, i, &to->grh.dgid))
			break;
		if (routable(&to->grh.dgid)) {
			to->grh.sgid_index = i;
			to->grh.hop_limit = 1;
			to->is_global = 1;
			return 0;
		}
	}
	errno = ENODEV;
	return -1;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	create_ah_func create = (create_ah_func)dlsym(RTLD_NEXT, "ibv_create_ah");
	struct ibv_ah_attr to = *attr;

	if (!create) {
		errno = ENOSYS;
		return NULL;
	}
	if (!to.is_global && lead_back(pd->context, &to))
		return NULL;
	return create(pd, &to);
}

typedef int (*poll_func)(struct pollfd *, nfds_t, int);

#define PATIENCE 2000 /* ms */

static long long milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	poll_func poll = (poll_func)dlsym(RTLD_NEXT, "rpoll");
	long long end = milliseconds() + (timeout < PATIENCE ? PATIENCE : timeout);
	int ready;

	if (!poll) {
		errno = ENOSYS;
		return -1;
	}
	if (timeout <= 0)
		return poll(fds, nfds, timeout);
	while (!(ready = poll(fds, nfds, 0)) && milliseconds() < end)
		usleep(50);
	return ready;
}
