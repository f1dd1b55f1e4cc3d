//go:build cgo && hw

package ibv

/*
#cgo noescape hw_notify
#cgo nocallback hw_notify
#cgo noescape hw_events
#cgo nocallback hw_events
#cgo noescape hw_poll
#cgo nocallback hw_poll
#cgo noescape hw_post
#cgo nocallback hw_post
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/smcgw/smcgw/verbs"
)

// These fail to compile unless the records have the layout of their C counterparts.
const (
	_ = -uint(unsafe.Sizeof(Send{}) ^ C.HW_SEND_SIZE)
	_ = -uint(unsafe.Offsetof(Send{}.Flags) ^ C.HW_SEND_FLAGS)
	_ = -uint(unsafe.Sizeof(Recv{}) ^ C.HW_RECV_SIZE)
	_ = -uint(unsafe.Offsetof(Recv{}.Flags) ^ C.HW_RECV_FLAGS)
	_ = -uint(unsafe.Sizeof(Completion{}) ^ C.HW_WC_SIZE)
	_ = -uint(unsafe.Offsetof(Completion{}.imm) ^ C.HW_WC_IMM)
	_ = -uint(unsafe.Offsetof(Completion{}.Flags) ^ C.HW_WC_FLAGS)
	_ = -uint(unsafe.Sizeof(verbs.SGE{}) ^ C.HW_SGE_SIZE)
	_ = -uint(unsafe.Offsetof(verbs.SGE{}.LKey) ^ C.HW_SGE_LKEY)
)

func (c *context) CreateChannel() (Channel, int, error) {
	var fd C.int
	h, err := C.hw_create_channel(c.ctx, &fd)
	ch, err := made(Channel(h), err)
	return ch, int(fd), err
}

func (c *context) DestroyChannel(ch Channel) error {
	return failure(C.hw_destroy_channel(C.uintptr_t(ch)))
}

func (c *context) CreateCQ(depth int, id uint64, ch Channel, vector int) (CQ, int, error) {
	n := C.int(depth)
	h, err := C.hw_create_cq(c.ctx, &n, C.uint64_t(id), C.uintptr_t(ch), C.int(vector))
	cq, err := made(CQ(h), err)
	return cq, int(n), err
}

func (c *context) DestroyCQ(cq CQ) error { return failure(C.hw_destroy_cq(C.uintptr_t(cq))) }

func (c *context) Notify(cqs []CQ) error {
	return failure(C.hw_notify((*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(cqs))), C.int(len(cqs))))
}

func (c *context) Events(ch Channel, ids []uint64) int {
	return int(C.hw_events(C.uintptr_t(ch), (*C.uint64_t)(unsafe.SliceData(ids)), C.int(len(ids))))
}

func (c *context) Poll(cq CQ, wcs []Completion) int {
	return int(C.hw_poll(C.uintptr_t(cq), (*C.struct_ibv_wc)(unsafe.Pointer(unsafe.SliceData(wcs))), C.int(len(wcs))))
}

func (c *context) Post(b *Batch) (refused int) {
	return int(C.hw_post(
		(*C.struct_hw_send)(unsafe.Pointer(unsafe.SliceData(b.Sends))), C.int(len(b.Sends)),
		(*C.struct_hw_recv)(unsafe.Pointer(unsafe.SliceData(b.Recvs))), C.int(len(b.Recvs)),
		(*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(b.SGEs))),
		(*C.uint8_t)(unsafe.SliceData(b.Inline)),
	))
}
