//go:build cgo && hw

package ibv

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// context implements Context.
type context struct{ ctx C.uintptr_t }

var _ Context = (*context)(nil)

// failure converts the result of a function that returns an errno.
func failure(ret C.int) error {
	if ret == 0 {
		return nil
	}
	return unix.Errno(max(ret, -ret))
}

func (c *context) Close() error { return failure(C.hw_close(c.ctx)) }

func (c *context) Query() (DeviceAttr, error) {
	var q C.struct_hw_adapter
	if err := failure(C.hw_query_device(c.ctx, &q)); err != nil {
		return DeviceAttr{}, err
	}
	a := &q.attr
	return DeviceAttr{
		Transport: int(q.transport), Ports: int(a.phys_port_cnt), Vectors: int(q.vectors), Atomic: a.atomic_cap != C.IBV_ATOMIC_NONE,
		MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxSGE: int(a.max_sge), MaxSGERead: int(a.max_sge_rd),
		MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr), MaxAH: int(a.max_ah),
		MaxRDAtomicOut: int(a.max_qp_init_rd_atom), MaxRDAtomicIn: int(a.max_qp_rd_atom), MaxMRSize: uint64(a.max_mr_size),
	}, nil
}

func (c *context) QueryPort(port uint8) (verbs.PortAttr, error) {
	var a C.struct_ibv_port_attr
	if err := failure(C.hw_query_port(c.ctx, C.uint8_t(port), &a)); err != nil {
		return verbs.PortAttr{}, err
	}
	gids, err := c.gids(port, int(a.gid_tbl_len))
	return verbs.PortAttr{
		State: verbs.PortState(a.state), MaxMTU: verbs.MTU(a.max_mtu), ActiveMTU: verbs.MTU(a.active_mtu),
		LinkLayer: verbs.LinkLayer(a.link_layer), LID: uint16(a.lid), PKeys: int(a.pkey_tbl_len), GIDs: gids,
		NeedsGRH: a.flags&C.IBV_QPF_GRH_REQUIRED != 0,
	}, err
}

func (c *context) QueryPKey(port uint8, index int) (uint16, error) {
	var k C.uint16_t
	err := failure(C.hw_query_pkey(c.ctx, C.uint8_t(port), C.int(index), &k))
	return uint16(k), err
}

// gids reads the port's table of n entries. The library returns the entries of all ports in one list, without the empty
// ones.
func (c *context) gids(port uint8, n int) ([]verbs.GIDEntry, error) {
	const most = 2047 // entries of all ports together; the kernel accepts buffers up to 64 KiB
	size := C.size_t(unsafe.Sizeof(C.struct_ibv_gid_entry{}))
	buf := (*C.struct_ibv_gid_entry)(C.calloc(most, size))
	if buf == nil {
		return nil, unix.ENOMEM
	}
	defer C.free(unsafe.Pointer(buf))
	k := C.hw_query_gids(c.ctx, buf, most)
	if k < 0 {
		return nil, fmt.Errorf("query GID table: %w", unix.Errno(-k))
	}
	var table []verbs.GIDEntry
	for _, e := range unsafe.Slice(buf, k) {
		if e.port_num != C.uint32_t(port) || int(e.gid_index) >= n {
			continue
		}
		for len(table) <= int(e.gid_index) {
			table = append(table, verbs.GIDEntry{})
		}
		table[e.gid_index] = verbs.GIDEntry{GID: e.gid, Type: verbs.GIDType(e.gid_type), Ifindex: int(e.ndev_ifindex)}
	}
	return table, nil
}

func (c *context) AllocPD() (PD, error) {
	pd, err := C.hw_alloc_pd(c.ctx)
	return made(PD(pd), err)
}

// made converts the result of a function that returns an object, or none and errno.
func made[T ~uintptr](handle T, err error) (T, error) {
	if handle != 0 {
		return handle, nil
	}
	if err == nil { // the provider did not set errno
		err = unix.EINVAL
	}
	return 0, err
}

func (c *context) DeallocPD(pd PD) error { return failure(C.hw_dealloc_pd(C.uintptr_t(pd))) }

func (c *context) RegMR(pd PD, buf []byte, access verbs.Access) (mr MR, lkey, rkey uint32, err error) {
	var l, r C.uint32_t
	h, err := C.hw_reg_mr(C.uintptr_t(pd), unsafe.Pointer(unsafe.SliceData(buf)), C.size_t(len(buf)), C.int(access), &l, &r)
	mr, err = made(MR(h), err)
	return mr, uint32(l), uint32(r), err
}

func (c *context) DeregMR(mr MR) error { return failure(C.hw_dereg_mr(C.uintptr_t(mr))) }

func (c *context) CreateAH(pd PD, attr *verbs.AHAttr) (AH, error) {
	var a C.struct_ibv_ah_attr
	setAH(&a, attr)
	h, err := C.hw_create_ah(C.uintptr_t(pd), &a)
	return made(AH(h), err)
}

// setAH converts an address. A GID makes it global, as every address on Ethernet is.
func setAH(a *C.struct_ibv_ah_attr, attr *verbs.AHAttr) {
	a.dlid, a.sl, a.src_path_bits, a.port_num = C.uint16_t(attr.DLID), C.uint8_t(attr.SL), C.uint8_t(attr.SrcPathBits), C.uint8_t(attr.Port)
	if attr.DGID == (verbs.GID{}) {
		return
	}
	a.is_global = 1
	a.grh.dgid = attr.DGID
	a.grh.flow_label, a.grh.sgid_index = C.uint32_t(attr.FlowLabel), C.uint8_t(attr.SGIDIndex)
	a.grh.hop_limit, a.grh.traffic_class = C.uint8_t(attr.HopLimit), C.uint8_t(attr.TrafficClass)
}

func (c *context) DestroyAH(ah AH) error { return failure(C.hw_destroy_ah(C.uintptr_t(ah))) }

func (c *context) AsyncFD() int { return int(C.hw_async_fd(c.ctx)) }

func (c *context) AsyncEvent() (Event, error) {
	var id C.uint64_t
	var port C.int
	typ := C.hw_async_event(c.ctx, &id, &port)
	if typ < 0 {
		return Event{}, unix.Errno(-typ)
	}
	return Event{Type: verbs.EventType(typ), ID: uint64(id), Port: uint8(port)}, nil
}
