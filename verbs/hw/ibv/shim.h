// The functions of libibverbs that Go calls. The library is loaded at run time;
// handles are pointers of the library as numbers, and are not checked.
#ifndef SMCGW_HW_SHIM_H
#define SMCGW_HW_SHIM_H

#include <infiniband/verbs.h>
#include <stdint.h>

// Macros of these names would hide the functions of the library.
#undef ibv_query_port
#undef ibv_reg_mr

// A send work request: ibv.Send.
struct hw_send {
	uint64_t qp, wr_id, remote_addr, compare_add, swap, ah;
	uint32_t rkey, imm, remote_qpn, remote_qkey;
	uint32_t first, count; // SGEs; with IBV_SEND_INLINE bytes
	int32_t next;          // next record of the same queue, -1 at the end
	int32_t err;
	uint16_t opcode, flags;
};

// A receive work request: ibv.Recv.
struct hw_recv {
	uint64_t qp, wr_id;
	uint32_t first;
	int32_t next, err;
	uint16_t count, flags;
};

// A flag of the records, in addition to those of libibverbs.
enum { HW_HEAD = 1 << 15 };

// Checked against the layout of the Go records.
enum {
	HW_SEND_SIZE = sizeof(struct hw_send),
	HW_SEND_FLAGS = offsetof(struct hw_send, flags),
	HW_RECV_SIZE = sizeof(struct hw_recv),
	HW_RECV_FLAGS = offsetof(struct hw_recv, flags),
	HW_WC_SIZE = sizeof(struct ibv_wc),
	HW_WC_IMM = offsetof(struct ibv_wc, imm_data),
	HW_WC_FLAGS = offsetof(struct ibv_wc, wc_flags),
	HW_SGE_SIZE = sizeof(struct ibv_sge),
	HW_SGE_LKEY = offsetof(struct ibv_sge, lkey),
};

// Loads the library. Returns the linker's error text, or NULL.
const char *hw_load(void);

struct ibv_device **hw_device_list(int *n);
void hw_free_device_list(struct ibv_device **l);
const char *hw_device_name(struct ibv_device **l, int i);
uintptr_t hw_open(struct ibv_device **l, int i);
int hw_close(uintptr_t ctx);

// The attributes of an adapter.
struct hw_adapter {
	struct ibv_device_attr attr;
	int transport, vectors;
};
int hw_query_device(uintptr_t ctx, struct hw_adapter *a);
int hw_query_port(uintptr_t ctx, uint8_t port, struct ibv_port_attr *a);
int hw_query_pkey(uintptr_t ctx, uint8_t port, int index, uint16_t *pkey);
long hw_query_gids(uintptr_t ctx, struct ibv_gid_entry *e, long max); // negative: -errno

uintptr_t hw_alloc_pd(uintptr_t ctx);
int hw_dealloc_pd(uintptr_t pd);
uintptr_t hw_reg_mr(uintptr_t pd, void *addr, size_t length, int access, uint32_t *lkey, uint32_t *rkey);
int hw_dereg_mr(uintptr_t mr);

uintptr_t hw_create_channel(uintptr_t ctx, int *fd);
int hw_destroy_channel(uintptr_t ch);
uintptr_t hw_create_cq(uintptr_t ctx, int *depth, uint64_t id, uintptr_t ch, int vector);
int hw_destroy_cq(uintptr_t cq);
int hw_notify(uintptr_t *cqs, int n);
// Takes events of armed completion queues without waiting, and acknowledges them.
int hw_events(uintptr_t ch, uint64_t *ids, int max);
int hw_poll(uintptr_t cq, struct ibv_wc *wcs, int max);

uintptr_t hw_create_qp(uintptr_t pd, struct ibv_qp_init_attr *a, uint64_t id, uintptr_t scq, uintptr_t rcq, uint32_t *num);
int hw_modify_qp(uintptr_t qp, struct ibv_qp_attr *a, int mask);
int hw_query_qp_state(uintptr_t qp); // negative: -errno
int hw_destroy_qp(uintptr_t qp);

uintptr_t hw_create_ah(uintptr_t pd, struct ibv_ah_attr *a);
int hw_destroy_ah(uintptr_t ah);

// Posts all records, each queue's as one list. Sets err of those that the
// provider refuses and those after them in their queue, and returns their number.
int hw_post(struct hw_send *sends, int ns, struct hw_recv *recvs, int nr, struct ibv_sge *sges, uint8_t *inl);

int hw_async_fd(uintptr_t ctx);
// Takes an asynchronous event without waiting and acknowledges it; id is that of
// its object, port that of an event without an object. Negative: -errno.
int hw_async_event(uintptr_t ctx, uint64_t *id, int *port);

#endif
