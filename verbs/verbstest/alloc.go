package verbstest

import (
	"testing"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Allocations checks that messages of every kind that the device has allocate nothing: neither to post, drive and poll,
// nor to find out whether the loop may sleep. It is not part of Run, since nothing may run beside it.
func Allocations(t *testing.T, open func(t testing.TB) *Pair) {
	connected := func(op verbs.WROpcode, bytes int) func(e *env) *verbs.SendWR {
		return func(e *env) *verbs.SendWR {
			e.connect()
			return e.a.write(op, 1, e.b, 0, bytes)
		}
	}
	for _, c := range []struct {
		name     string
		needs    verbs.Ops
		received bool // by a receive of the peer's
		message  func(e *env) *verbs.SendWR
	}{
		{"write", verbs.OpRDMAWrite, false, connected(verbs.WRRDMAWrite, 64<<10)},
		{"padded", verbs.OpRDMAWrite, true, connected(verbs.WRRDMAWriteWithImm, 64<<10-3)},
		{"inline", verbs.OpRDMAWrite, true, func(e *env) *verbs.SendWR {
			wr := connected(verbs.WRRDMAWriteWithImm, 0)(e)
			wr.SGList, wr.Inline, wr.Flags = nil, make([]byte, testCap.MaxInline), verbs.SendInline
			return wr
		}},
		{"mapped", verbs.OpRDMAWrite, true, func(e *env) *verbs.SendWR {
			if e.mapper() == nil {
				return nil
			}
			e.connect()
			return e.mapped(0, 4096)
		}},
		{"send", verbs.OpSend, true, connected(verbs.WRSend, 20000)},
		{"immediate", verbs.OpSend, true, connected(verbs.WRSendWithImm, 20000)},
		{"read", verbs.OpRDMARead, false, connected(verbs.WRRDMARead, 64<<10)},
		{"atomic", verbs.OpAtomic, false, connected(verbs.WRAtomicFetchAndAdd, 8)},
		{"datagram", verbs.OpUD, true, func(e *env) *verbs.SendWR {
			e.use(verbs.QPTUD)
			e.connect()
			return e.a.send(1, 0, 1000)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, open(t))
			if !e.a.has(c.needs) {
				return
			}
			if wr := c.message(e); wr != nil {
				round := e.messages(wr, c.received)
				for range 25 { // rings and lists grow to what they need
					round()
				}
				e.Zero(testing.AllocsPerRun(100, round))
			}
		})
	}
}

// messages returns a function that sends a message of A's a few times, with memory that is there already.
func (e *env) messages(wr *verbs.SendWR, received bool) func() {
	const messages = 4
	recv := &verbs.RecvWR{SGList: []verbs.SGE{e.b.sge(0, regionSize)}}
	var wcs [16]verbs.WC
	turn := func(d *end, cq verbs.CQ) int {
		d.Driver.Progress(time.Now())
		n, err := cq.Poll(wcs[:])
		if err != nil {
			e.t.Fatal(err)
		}
		for i := range wcs[:n] {
			if wcs[i].Status != verbs.WCSuccess {
				e.t.Fatal(wcs[i].Opcode, wcs[i].Status)
			}
		}
		d.Driver.Flush()
		return n
	}
	return func() {
		sends, recvs := messages, 0
		if received {
			recvs = messages
		}
		for range recvs {
			if err := e.b.qp.PostRecv(recv); err != nil {
				e.t.Fatal(err)
			}
		}
		e.b.Driver.Flush()
		for range sends {
			if wr.Flags&verbs.SendMapped != 0 {
				if _, err := e.a.qp.(verbs.RemoteMapper).MapRemote(wr.RKey, wr.RemoteAddr, int(wr.SGList[0].Length)); err != nil {
					e.t.Fatal(err)
				}
			}
			if err := e.a.qp.PostSend(wr); err != nil {
				e.t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(e.patience()); sends > 0 || recvs > 0; {
			if time.Now().After(deadline) {
				e.t.Fatalf("%d sends and %d receives do not complete", sends, recvs)
			}
			sends -= turn(e.a, e.a.scq)
			recvs -= turn(e.b, e.b.rcq)
		}
		if e.b.Driver.Arm() {
			e.b.Driver.Disarm()
		}
	}
}
