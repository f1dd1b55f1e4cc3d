package cm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/smcgw/smcgw/verbs"
)

// gsiQKey is the Q_Key of queue pair 1 everywhere (IBTA vol. 1, 3.5.3).
const (
	gsiQKey = 0x80010000
	gsiQPN  = 1
)

// Bounds on datagrams in flight, in and out. A datagram without a buffer is lost, as datagrams may be, and repeated.
const (
	receiveSlots = 256
	sendSlots    = 64
	slotSize     = 320 // GRH and MAD, rounded
	hopLimit     = 64
)

// gsi is queue pair 1 with its buffers. Methods marked so run in the loop of its vector, the others outside of any
// loop.
type gsi struct {
	dev     verbs.Device
	do      func(func()) error
	pd      verbs.PD
	cq      verbs.CQ
	qp      verbs.QP
	mr      verbs.MR
	arrived chan struct{}
	free    []uint64 // free send slots; only used in the loop
	dead    bool     // the queue pair is in ERR; only used in the loop
	wcs     [32]verbs.WC
}

// inbound is a received datagram; the receiver owns its bytes.
type inbound struct {
	src, dst netip.Addr
	mad      []byte
}

// errFlushed is the failure of queue pair 1.
var errFlushed = fmt.Errorf("in error: %w", verbs.ErrState)

func newGSI(dev verbs.Device, vector int, do func(func()) error) (g *gsi, err error) {
	g = &gsi{dev: dev, do: do, arrived: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			g.close()
			err = fmt.Errorf("queue pair 1: %w", err)
		}
	}()
	if g.pd, err = dev.AllocPD(); err != nil {
		return g, err
	}
	const slots = receiveSlots + sendSlots
	if g.mr, err = g.pd.AllocMR(slots*slotSize, verbs.AccessLocalWrite); err != nil {
		return g, err
	}
	if g.cq, err = dev.CreateCQ(verbs.CQAttr{Depth: slots, Vector: vector, Arrived: g.arrived}); err != nil {
		return g, err
	}
	g.qp, err = g.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.QPTGSI, SendCQ: g.cq, RecvCQ: g.cq,
		Cap: verbs.QPCap{MaxSendWR: sendSlots, MaxRecvWR: receiveSlots, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return g, err
	}
	for slot := range uint64(sendSlots) {
		g.free = append(g.free, receiveSlots+slot)
	}
	return g, g.run(g.start)
}

// start runs in the loop.
func (g *gsi) start() error {
	if err := verbs.StartUD(g.qp, gsiQKey, 0); err != nil {
		return err
	}
	for slot := range uint64(receiveSlots) {
		if err := g.post(slot); err != nil {
			return err
		}
	}
	return nil
}

func (g *gsi) run(f func() error) error { return runIn(g.do, f) }

// runIn runs f by do, or directly if do is nil.
func runIn(do func(func()) error, f func() error) (err error) {
	if do == nil {
		return f()
	}
	if e := do(func() { err = f() }); e != nil {
		return e
	}
	return err
}

func (g *gsi) slot(i uint64) []byte { return g.mr.Bytes()[i*slotSize : (i+1)*slotSize] }

func (g *gsi) sge(i uint64, n uint32) []verbs.SGE {
	return []verbs.SGE{{Addr: g.mr.Addr() + i*slotSize, Length: n, LKey: g.mr.LKey()}}
}

// post runs in the loop.
func (g *gsi) post(slot uint64) error {
	return g.qp.PostRecv(&verbs.RecvWR{WRID: slot, SGList: g.sge(slot, grhSize+MADSize)})
}

// receive waits for datagrams and returns them; ctx ends it.
func (g *gsi) receive(ctx context.Context) (got []inbound, err error) {
	for len(got) == 0 {
		select {
		case <-g.arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if err := g.run(func() error { got, err = g.poll(); return err }); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// poll runs in the loop: it takes all completions.
func (g *gsi) poll() (got []inbound, err error) {
	for {
		n, err := g.cq.Poll(g.wcs[:])
		for i := range g.wcs[:n] {
			got = g.completed(&g.wcs[i], got)
		}
		if g.dead && err == nil {
			err = errFlushed
		}
		if err != nil || n == 0 {
			return got, err
		}
	}
}

// completed runs in the loop.
func (g *gsi) completed(wc *verbs.WC, got []inbound) []inbound {
	if wc.WRID >= receiveSlots {
		g.free = append(g.free, wc.WRID)
		return got
	}
	b := g.slot(wc.WRID)
	// Only queue pair 1 of a peer may act for it: other queue pairs belong to applications.
	if wc.Status == verbs.WCSuccess && wc.Flags&verbs.WCGRH != 0 && wc.SrcQP == gsiQPN && wc.ByteLen == grhSize+MADSize {
		if src, dst, ok := parseGRH(b); ok {
			got = append(got, inbound{src, dst, slices.Clone(b[grhSize : grhSize+MADSize])})
		}
	}
	if wc.Status == verbs.WCWRFlushErr || g.post(wc.WRID) != nil {
		g.dead = true
	}
	return got
}

// send sends one datagram and reports whether it could. It runs in the loop.
func (g *gsi) send(d *datagram) bool {
	if len(g.free) == 0 {
		return false
	}
	ah, err := g.pd.CreateAH(g.address(d.to))
	if err != nil {
		return false
	}
	defer func() { _ = ah.Close() }()
	slot := g.free[len(g.free)-1]
	Append(g.slot(slot)[:0], d.tid, d.msg)
	err = g.qp.PostSend(&verbs.SendWR{
		WRID: slot, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: g.sge(slot, MADSize),
		AH: ah, RemoteQPN: gsiQPN, RemoteQKey: gsiQKey,
	})
	if err == nil {
		g.free = g.free[:len(g.free)-1]
	}
	return err == nil
}

// address returns the peer's address for a route. Its UDP port is assumed to be the same as ours.
func (g *gsi) address(to route) verbs.AHAttr { return ahAttr(g.dev.Port(), to) }

func ahAttr(port verbs.PortAttr, to route) verbs.AHAttr {
	return verbs.AHAttr{
		DGID: verbs.GIDOf(to.remote), SGIDIndex: uint8(to.local), HopLimit: hopLimit, Port: 1, UDPPort: port.UDPPort,
	}
}

// idle reports whether everything sent has left. It runs in the loop.
func (g *gsi) idle() bool { return len(g.free) == sendSlots }

// close destroys what exists. Errors are ignored: the loop may be gone already.
func (g *gsi) close() {
	_ = g.run(func() error {
		if g.qp != nil {
			_ = g.qp.Close()
		}
		if g.cq != nil {
			_ = g.cq.Close()
		}
		return nil
	})
	if g.mr != nil {
		_ = g.mr.Close()
	}
	if g.pd != nil {
		_ = g.pd.Close()
	}
}
