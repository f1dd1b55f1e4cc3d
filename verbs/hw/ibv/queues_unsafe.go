//go:build cgo && hw

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

func (c *context) CreateQP(init *QPInit) (qp QP, num uint32, err error) {
	a := C.struct_ibv_qp_init_attr{qp_type: uint32(init.Type)}
	a.cap = C.struct_ibv_qp_cap{
		max_send_wr: C.uint32_t(init.Cap.MaxSendWR), max_recv_wr: C.uint32_t(init.Cap.MaxRecvWR),
		max_send_sge: C.uint32_t(init.Cap.MaxSendSGE), max_recv_sge: C.uint32_t(init.Cap.MaxRecvSGE),
		max_inline_data: C.uint32_t(init.Cap.MaxInline),
	}
	if init.SQSigAll {
		a.sq_sig_all = 1
	}
	var n C.uint32_t
	h, err := C.hw_create_qp(C.uintptr_t(init.PD), &a, C.uint64_t(init.ID), C.uintptr_t(init.SendCQ), C.uintptr_t(init.RecvCQ), &n)
	qp, err = made(QP(h), err)
	return qp, uint32(n), err
}

func (c *context) ModifyQP(qp QP, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	a := C.struct_ibv_qp_attr{
		qp_state: uint32(attr.State), cur_qp_state: uint32(attr.CurState), path_mtu: uint32(attr.PathMTU),
		qkey: C.uint32_t(attr.QKey), rq_psn: C.uint32_t(attr.RQPSN), sq_psn: C.uint32_t(attr.SQPSN), dest_qp_num: C.uint32_t(attr.DestQPNum),
		qp_access_flags: C.uint(attr.Access), pkey_index: C.uint16_t(attr.PKeyIndex), port_num: C.uint8_t(attr.Port),
		max_rd_atomic: C.uint8_t(attr.MaxRDAtomic), max_dest_rd_atomic: C.uint8_t(attr.MaxDestRDAtomic),
		min_rnr_timer: C.uint8_t(attr.MinRNRTimer), timeout: C.uint8_t(attr.Timeout),
		retry_cnt: C.uint8_t(attr.RetryCnt), rnr_retry: C.uint8_t(attr.RNRRetry),
	}
	if mask&verbs.QPAttrAV != 0 {
		setAH(&a.ah_attr, &attr.AH)
	}
	return failure(C.hw_modify_qp(C.uintptr_t(qp), &a, C.int(mask)))
}

func (c *context) QueryQPState(qp QP) (verbs.QPState, error) {
	n := C.hw_query_qp_state(C.uintptr_t(qp))
	if n < 0 {
		return 0, unix.Errno(-n)
	}
	return verbs.QPState(n), nil
}

func (c *context) DestroyQP(qp QP) error { return failure(C.hw_destroy_qp(C.uintptr_t(qp))) }
