package interop

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// endpoint is one of our devices on the host, with one loop, and one protection domain and one CQ for everything. The
// goroutine of a test uses it: it posts through do and waits for completions with next.
type endpoint struct {
	t    *testing.T
	addr netip.Addr
	dev  *soft.Device
	loop *loop.Loop
	pd   verbs.PD
	cq   verbs.CQ
	wcs  chan verbs.WC

	closers []func() error // run in reverse, in the loop
}

// cqDepth is also the most completions that a test may leave unread.
const cqDepth = 8192

// open opens one of our devices on an address of the host, whose family is then used.
func (l *lab) open(t *testing.T, addr netip.Addr) *endpoint {
	t.Helper()
	e := &endpoint{t: t, addr: addr, wcs: make(chan verbs.WC, cqDepth)}
	require.NoError(t, l.host.Do(func() (err error) {
		e.dev, err = soft.Open(soft.Config{Addrs: []netip.Addr{addr}})
		return err
	}))
	t.Cleanup(func() { require.NoError(t, e.dev.Close()) })
	var err error
	e.pd, err = e.dev.AllocPD()
	require.NoError(t, err)
	e.cq, err = e.dev.CreateCQ(verbs.CQAttr{Depth: cqDepth})
	require.NoError(t, err)
	e.loop, err = loop.New(e.dev, 0, e.turn)
	require.NoError(t, err)
	t.Cleanup(e.close)
	// The device opens sockets to send from when a queue pair first needs them.
	require.NoError(t, errors.Join(e.loop.Do(func() { err = l.host.Stay() }), err))
	return e
}

// turn hands completions to the test. A test cannot leave more unread than it posts.
func (e *endpoint) turn() bool {
	var wcs [32]verbs.WC
	n, err := e.cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		e.wcs <- wc
	}
	return n > 0 && err == nil
}

func (e *endpoint) close() {
	var errs []error
	err := e.loop.Do(func() {
		for _, c := range slices.Backward(e.closers) {
			errs = append(errs, c())
		}
		errs = append(errs, e.cq.Close())
	})
	require.NoError(e.t, errors.Join(append(errs, err, e.loop.Close(), e.pd.Close())...))
}

// do runs f in the loop. It must succeed.
func (e *endpoint) do(f func() error) {
	e.t.Helper()
	var err error
	require.NoError(e.t, e.loop.Do(func() { err = f() }))
	require.NoError(e.t, err)
}

// next waits for a completion.
func (e *endpoint) next() verbs.WC {
	e.t.Helper()
	select {
	case wc := <-e.wcs:
		return wc
	case <-time.After(time.Minute):
		require.FailNow(e.t, "no completion")
		return verbs.WC{}
	}
}

// good waits for a completion, which must be a success.
func (e *endpoint) good() verbs.WC {
	e.t.Helper()
	wc := e.next()
	require.Equal(e.t, verbs.WCSuccess, wc.Status, "%+v", wc)
	return wc
}

// memory returns registered memory of a size with all access rights.
func (e *endpoint) memory(size int) verbs.MR {
	e.t.Helper()
	mr, err := e.pd.AllocMR(size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	require.NoError(e.t, err)
	e.closers = append(e.closers, mr.Close)
	return mr
}

// qp creates a queue pair.
func (e *endpoint) qp(kind verbs.QPType) verbs.QP {
	e.t.Helper()
	qp, err := e.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: kind,
		Cap: verbs.QPCap{MaxSendWR: 512, MaxRecvWR: 1024, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64},
	})
	require.NoError(e.t, err)
	e.closers = append(e.closers, qp.Close)
	return qp
}

// rights are the rights of queue pairs that expose memory to the peer.
const rights = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// peer is the queue pair on the other side.
type peer struct {
	qpn, psn uint32
	gid      verbs.GID
}

// attrTo returns the attributes of a queue pair that is connected to a peer, with the timers that the programs of
// rdma-core use: timeouts of 67 ms, 7 retries, infinitely many RNR retries, min_rnr_timer 0.64 ms.
func (e *endpoint) attrTo(p peer, psn uint32) verbs.QPAttr {
	a := verbs.ConnectAttr(p.qpn)
	a.PathMTU, a.RQPSN, a.SQPSN = verbs.MTU1024, p.psn, psn
	a.MaxRDAtomic, a.MaxDestRDAtomic = 16, 16
	a.AH = verbs.AHAttr{DGID: p.gid, Port: 1, HopLimit: 64}
	return a
}

// sge returns a part of memory.
func sge(mr verbs.MR, from, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: mr.Addr() + uint64(from), Length: uint32(n), LKey: mr.LKey()}}
}
