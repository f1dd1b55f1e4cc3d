//go:build cgo && hw

#include "shim.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// The functions that the library exports. Data path calls go through the
// context's table instead, by the inline functions of verbs.h.
static struct {
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
	int (*query_pkey)(struct ibv_context *, uint8_t, int, __be16 *);
	ssize_t (*query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
	int (*destroy_comp_channel)(struct ibv_comp_channel *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ack_cq_events)(struct ibv_cq *, unsigned int);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
	int (*destroy_qp)(struct ibv_qp *);
	struct ibv_ah *(*create_ah)(struct ibv_pd *, struct ibv_ah_attr *);
	int (*destroy_ah)(struct ibv_ah *);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ack_async_event)(struct ibv_async_event *);
} lib;

const char *hw_load(void)
{
#define F(x) { "ibv_" #x, (void **)&lib.x }
	static const struct {
		const char *name;
		void **to;
	} names[] = {
		F(get_device_list), F(free_device_list), F(get_device_name), F(open_device), F(close_device),
		F(query_device), F(query_port), F(query_pkey), F(alloc_pd), F(dealloc_pd), F(reg_mr), F(dereg_mr),
		F(create_comp_channel), F(destroy_comp_channel), F(create_cq), F(destroy_cq),
		F(get_cq_event), F(ack_cq_events), F(create_qp), F(modify_qp), F(query_qp), F(destroy_qp),
		F(create_ah), F(destroy_ah),
		F(get_async_event), F(ack_async_event),
		{ "_ibv_query_gid_table", (void **)&lib.query_gid_table },
	};
#undef F
	// The kernel refuses to destroy objects that it removed with an adapter (hot
	// unplug, firmware reset). The library then keeps its half of the object,
	// including the descriptor of a completion channel, unless this variable is
	// set when the library is first used.
	setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 0);
	// Providers look up the library's symbols in the global scope.
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!handle)
		return dlerror();
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		*names[i].to = dlsym(handle, names[i].name);
		if (!*names[i].to)
			return dlerror();
	}
	return NULL;
}

// Adapter

struct ibv_device **hw_device_list(int *n) { return lib.get_device_list(n); }
void hw_free_device_list(struct ibv_device **l) { lib.free_device_list(l); }
const char *hw_device_name(struct ibv_device **l, int i) { return lib.get_device_name(l[i]); }
uintptr_t hw_open(struct ibv_device **l, int i) { return (uintptr_t)lib.open_device(l[i]); }
int hw_close(uintptr_t ctx) { return lib.close_device((struct ibv_context *)ctx); }

int hw_query_device(uintptr_t ctx, struct hw_adapter *a)
{
	struct ibv_context *c = (struct ibv_context *)ctx;

	int err = lib.query_device(c, &a->attr);

	a->transport = c->device->transport_type;
	a->vectors = c->num_comp_vectors;
	return err;
}

// Like ___ibv_query_port of verbs.h: the library's exported function fills in
// only the fields of its first version.
int hw_query_port(uintptr_t ctx, uint8_t port, struct ibv_port_attr *a)
{
	struct ibv_context *c = (struct ibv_context *)ctx;
	struct verbs_context *v = verbs_get_ctx_op(c, query_port);

	memset(a, 0, sizeof(*a));
	if (v)
		return v->query_port(c, port, a, sizeof(*a));
	return lib.query_port(c, port, (struct _compat_ibv_port_attr *)a);
}

long hw_query_gids(uintptr_t ctx, struct ibv_gid_entry *e, long max)
{
	return lib.query_gid_table((struct ibv_context *)ctx, e, max, 0, sizeof(*e));
}

int hw_query_pkey(uintptr_t ctx, uint8_t port, int index, uint16_t *pkey)
{
	__be16 k = 0;

	errno = EINVAL; // the library does not set errno for an index beyond the table
	if (lib.query_pkey((struct ibv_context *)ctx, port, index, &k))
		return errno;
	*pkey = be16toh(k);
	return 0;
}

// Memory

uintptr_t hw_alloc_pd(uintptr_t ctx) { return (uintptr_t)lib.alloc_pd((struct ibv_context *)ctx); }
int hw_dealloc_pd(uintptr_t pd) { return lib.dealloc_pd((struct ibv_pd *)pd); }

uintptr_t hw_reg_mr(uintptr_t pd, void *addr, size_t length, int access, uint32_t *lkey, uint32_t *rkey)
{
	struct ibv_mr *mr = lib.reg_mr((struct ibv_pd *)pd, addr, length, access);

	if (mr) {
		*lkey = mr->lkey;
		*rkey = mr->rkey;
	}
	return (uintptr_t)mr;
}

int hw_dereg_mr(uintptr_t mr) { return lib.dereg_mr((struct ibv_mr *)mr); }

// Completions

static int unblock(int fd) { return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

uintptr_t hw_create_channel(uintptr_t ctx, int *fd)
{
	struct ibv_comp_channel *ch = lib.create_comp_channel((struct ibv_context *)ctx);

	if (ch) {
		*fd = ch->fd;
		unblock(ch->fd);
	}
	return (uintptr_t)ch;
}

int hw_destroy_channel(uintptr_t ch) { return lib.destroy_comp_channel((struct ibv_comp_channel *)ch); }

uintptr_t hw_create_cq(uintptr_t ctx, int *depth, uint64_t id, uintptr_t ch, int vector)
{
	struct ibv_cq *cq = lib.create_cq((struct ibv_context *)ctx, *depth, (void *)(uintptr_t)id, (struct ibv_comp_channel *)ch, vector);

	if (cq)
		*depth = cq->cqe;
	return (uintptr_t)cq;
}

int hw_destroy_cq(uintptr_t cq) { return lib.destroy_cq((struct ibv_cq *)cq); }

int hw_notify(uintptr_t *cqs, int n)
{
	for (int i = 0; i < n; i++) {
		int err = ibv_req_notify_cq((struct ibv_cq *)cqs[i], 0);
		if (err)
			return err;
	}
	return 0;
}

// An event that is not acknowledged keeps destroy_cq from returning.
int hw_events(uintptr_t ch, uint64_t *ids, int max)
{
	struct ibv_cq *cq;
	void *id;
	int n = 0;

	while (n < max && lib.get_cq_event((struct ibv_comp_channel *)ch, &cq, &id) == 0) {
		lib.ack_cq_events(cq, 1);
		ids[n++] = (uintptr_t)id;
	}
	return n;
}

int hw_poll(uintptr_t cq, struct ibv_wc *wcs, int max) { return ibv_poll_cq((struct ibv_cq *)cq, max, wcs); }

// Queue pairs

uintptr_t hw_create_qp(uintptr_t pd, struct ibv_qp_init_attr *a, uint64_t id, uintptr_t scq, uintptr_t rcq, uint32_t *num)
{
	struct ibv_qp_init_attr attr = *a;
	struct ibv_qp *qp;

	attr.qp_context = (void *)(uintptr_t)id;
	attr.send_cq = (struct ibv_cq *)scq;
	attr.recv_cq = (struct ibv_cq *)rcq;
	qp = lib.create_qp((struct ibv_pd *)pd, &attr);
	if (qp)
		*num = qp->qp_num;
	return (uintptr_t)qp;
}

int hw_modify_qp(uintptr_t qp, struct ibv_qp_attr *a, int mask) { return lib.modify_qp((struct ibv_qp *)qp, a, mask); }

int hw_query_qp_state(uintptr_t qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int err = lib.query_qp((struct ibv_qp *)qp, &attr, IBV_QP_STATE, &init);

	return err ? -err : (int)attr.qp_state;
}

int hw_destroy_qp(uintptr_t qp) { return lib.destroy_qp((struct ibv_qp *)qp); }

uintptr_t hw_create_ah(uintptr_t pd, struct ibv_ah_attr *a) { return (uintptr_t)lib.create_ah((struct ibv_pd *)pd, a); }
int hw_destroy_ah(uintptr_t ah) { return lib.destroy_ah((struct ibv_ah *)ah); }

// Posting

enum { CHAIN = 64 }; // maximum work requests per list; further ones go into the next list

static void encode(struct ibv_send_wr *wr, struct ibv_sge *inl_sge, const struct hw_send *s, struct ibv_sge *sges, uint8_t *inl)
{
	wr->wr_id = s->wr_id;
	wr->sg_list = sges + s->first;
	wr->num_sge = s->count;
	wr->opcode = s->opcode;
	wr->send_flags = s->flags & (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE);
	wr->imm_data = htonl(s->imm);
	if (s->flags & IBV_SEND_INLINE) {
		*inl_sge = (struct ibv_sge){ .addr = (uintptr_t)(inl + s->first), .length = s->count };
		wr->sg_list = inl_sge;
		wr->num_sge = 1;
	}
	if (s->ah) {
		wr->wr.ud.ah = (struct ibv_ah *)(uintptr_t)s->ah;
		wr->wr.ud.remote_qpn = s->remote_qpn;
		wr->wr.ud.remote_qkey = s->remote_qkey;
	} else if (s->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || s->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr->wr.atomic.remote_addr = s->remote_addr;
		wr->wr.atomic.rkey = s->rkey;
		wr->wr.atomic.compare_add = s->compare_add;
		wr->wr.atomic.swap = s->swap;
	} else {
		wr->wr.rdma.remote_addr = s->remote_addr;
		wr->wr.rdma.rkey = s->rkey;
	}
}

// Marks the records of a queue from i on.
static int refuse_sends(struct hw_send *s, int i, int err)
{
	int n = 0;

	for (; i >= 0; i = s[i].next, err = ECANCELED, n++)
		s[i].err = err;
	return n;
}

static int post_sends(struct hw_send *s, int i, struct ibv_sge *sges, uint8_t *inl)
{
	struct ibv_qp *qp = (struct ibv_qp *)(uintptr_t)s[i].qp;
	struct ibv_send_wr wr[CHAIN], *bad;
	struct ibv_sge inl_sges[CHAIN];
	int from[CHAIN];

	while (i >= 0) {
		int k = 0;
		for (; i >= 0 && k < CHAIN; i = s[i].next, k++) {
			from[k] = i;
			encode(wr + k, inl_sges + k, s + i, sges, inl);
			wr[k].next = wr + k + 1;
		}
		wr[k - 1].next = NULL;
		bad = wr;
		int err = ibv_post_send(qp, wr, &bad);
		if (err) // rxe names no bad request if its doorbell fails
			return refuse_sends(s, from[bad >= wr && bad < wr + k ? bad - wr : 0], err < 0 ? -err : err);
	}
	return 0;
}

static int refuse_recvs(struct hw_recv *r, int i, int err)
{
	int n = 0;

	for (; i >= 0; i = r[i].next, err = ECANCELED, n++)
		r[i].err = err;
	return n;
}

static int post_recvs(struct hw_recv *r, int i, struct ibv_sge *sges)
{
	struct ibv_qp *qp = (struct ibv_qp *)(uintptr_t)r[i].qp;
	struct ibv_recv_wr wr[CHAIN], *bad;
	int from[CHAIN];

	while (i >= 0) {
		int k = 0;
		for (; i >= 0 && k < CHAIN; i = r[i].next, k++) {
			from[k] = i;
			wr[k] = (struct ibv_recv_wr){ .wr_id = r[i].wr_id, .next = wr + k + 1, .sg_list = sges + r[i].first, .num_sge = r[i].count };
		}
		wr[k - 1].next = NULL;
		bad = wr;
		int err = ibv_post_recv(qp, wr, &bad);
		if (err)
			return refuse_recvs(r, from[bad >= wr && bad < wr + k ? bad - wr : 0], err < 0 ? -err : err);
	}
	return 0;
}

int hw_post(struct hw_send *sends, int ns, struct hw_recv *recvs, int nr, struct ibv_sge *sges, uint8_t *inl)
{
	int refused = 0;

	for (int i = 0; i < nr; i++)
		if (recvs[i].flags & HW_HEAD)
			refused += post_recvs(recvs, i, sges);
	for (int i = 0; i < ns; i++)
		if (sends[i].flags & HW_HEAD)
			refused += post_sends(sends, i, sges, inl);
	return refused;
}

// Asynchronous events

int hw_async_fd(uintptr_t ctx)
{
	int fd = ((struct ibv_context *)ctx)->async_fd;

	unblock(fd);
	return fd;
}

int hw_async_event(uintptr_t ctx, uint64_t *id, int *port)
{
	struct ibv_async_event e;
	void *of = NULL;

	if (lib.get_async_event((struct ibv_context *)ctx, &e))
		return -errno;
	*port = 0;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		of = e.element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		of = e.element.qp->qp_context;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		*port = e.element.port_num;
		break;
	default:
		break;
	}
	*id = (uintptr_t)of;
	lib.ack_async_event(&e);
	return e.event_type;
}
