package hw

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// Bounds on what the device claims, below what adapters report: rxe reports a million work requests per queue, and a
// caller that uses the maximum would lock gigabytes.
const (
	maxWR      = 1 << 14
	maxSGE     = 16
	maxMRSize  = 1 << 38
	maxMsg     = 1 << 30 // below RC's 2 GiB, and within the signed lengths of some providers
	maxAtomics = 255
)

// probe determines what the adapter supports.
func (d *Device) probe() error {
	a, err := d.ctx.Query()
	if err != nil {
		return failure("query adapter", err)
	}
	if int(d.cfg.Port) > a.Ports {
		return fmt.Errorf("port %d of %d: %w", d.cfg.Port, a.Ports, ErrNoDevice)
	}
	port, err := d.ctx.QueryPort(d.cfg.Port)
	if err != nil {
		return failure("query port", err)
	}
	d.linkLayer, d.pkeys = port.LinkLayer, max(1, port.PKeys)
	d.describe(&a)
	if t := Transport(a.Transport); t != TransportInfiniBand {
		return fmt.Errorf("%v has no RDMA WRITE with immediate: %w", t, ErrUnsuitable)
	}
	return d.tryOut(&a)
}

func (d *Device) describe(a *ibv.DeviceAttr) {
	d.adapterVectors = a.Vectors
	d.attr = verbs.DeviceAttr{
		Ops:         verbs.OpSend | verbs.OpRDMAWrite | verbs.OpWriteImm,
		Provider:    provider(d.cfg.Adapter),
		Vectors:     d.cfg.Vectors,
		MaxQP:       a.MaxQP,
		MaxQPWR:     min(a.MaxQPWR, maxWR),
		MaxSGE:      min(a.MaxSGE, maxSGE),
		MaxCQE:      a.MaxCQE,
		MaxMR:       a.MaxMR,
		MaxMRSize:   min(a.MaxMRSize, maxMRSize),
		MaxMsgSize:  maxMsg,
		MaxRDAtomic: min(a.MaxRDAtomicOut, a.MaxRDAtomicIn, maxAtomics),
		RemoteRegMR: true,
	}
	if d.attr.MaxRDAtomic > 0 && a.MaxSGERead > 0 {
		d.attr.Ops |= verbs.OpRDMARead
		d.attr.MaxSGE = min(d.attr.MaxSGE, a.MaxSGERead)
		if a.Atomic {
			d.attr.Ops |= verbs.OpAtomic
		}
	}
}

// tryOut creates objects to determine what no attribute tells: which transports there are, and the maximum inline size.
func (d *Device) tryOut(a *ibv.DeviceAttr) (err error) {
	pd, err := d.ctx.AllocPD()
	if err != nil {
		return failure("protection domain", err)
	}
	defer func() { err = errors.Join(err, failure("free protection domain", d.ctx.DeallocPD(pd))) }()
	ch, _, err := d.ctx.CreateChannel()
	if err != nil {
		return failure("completion channel", err)
	}
	defer func() {
		err = errors.Join(err, failure("destroy completion channel", d.ctx.DestroyChannel(ch)))
	}()
	cq, _, err := d.ctx.CreateCQ(16, 0, ch, 0)
	if err != nil {
		return failure("completion queue", err)
	}
	defer func() { err = errors.Join(err, failure("destroy completion queue", d.ctx.DestroyCQ(cq))) }()
	try := func(typ verbs.QPType, inline int) error {
		qp, _, err := d.ctx.CreateQP(&ibv.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, Type: typ, Cap: verbs.QPCap{
			MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: d.attr.MaxSGE, MaxRecvSGE: d.attr.MaxSGE, MaxInline: inline,
		}})
		if err != nil {
			return err
		}
		return d.ctx.DestroyQP(qp)
	}
	return d.tryQueuePairs(a, try)
}

func (d *Device) tryQueuePairs(a *ibv.DeviceAttr, try func(typ verbs.QPType, inline int) error) error {
	switch err := try(verbs.QPTRC, 0); {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("no reliable connections (%w): %w", err, ErrUnsuitable)
	case err != nil:
		return failure("RC queue pair", err)
	}
	if try(verbs.QPTUC, 0) == nil {
		d.attr.Ops |= verbs.OpUC
	}
	if try(verbs.QPTUD, 0) == nil {
		d.attr.Ops |= verbs.OpUD
		if d.attr.MaxAH = a.MaxAH; d.attr.MaxAH <= 0 { // made in user space, without a limit
			d.attr.MaxAH = 1 << 20
		}
	}
	for _, n := range []int{512, 256, 128, 64, 32} {
		if try(verbs.QPTRC, n) == nil {
			d.attr.MaxInline = n
			break
		}
	}
	return nil
}

// provider returns the name of an adapter's kernel driver. Adapters without a bus device (rxe, siw) are identified by
// their driver's text.
func provider(adapter string) string {
	if target, err := os.Readlink(filepath.Join(ibv.ClassDir, adapter, "device", "driver")); err == nil {
		return filepath.Base(target)
	}
	if _, err := os.Stat(filepath.Join(ibv.ClassDir, adapter, "parent")); err == nil {
		return "rxe"
	}
	return "unknown"
}
