package conn

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// halfPair is a connection of which only one side's gateway carries; the test
// plays the other on the wire.
func (p *pair) halfPair(t *testing.T, kind negotiate.CarrierKind, side int) (*pairConn, *Flow, *fakeWire) {
	a, b := newFakeWires(1<<20, 1<<20)
	c := p.begin(t, a, b)
	if kind != negotiate.CarrierRelay {
		c.meet(t, kind)
	}
	c.flow[side].call(func() { c.flow[side].carryBy(kind) })
	c.flow[side].call(func() { c.flow[side].records(nil) })
	t.Cleanup(func() {
		c.closeApps()
		c.flow[side].call(func() { c.flow[side].abort(negotiate.ReasonDrained, false) })
		c.flow[1-side].call(func() { c.flow[1-side].abort(negotiate.ReasonDrained, false) })
		c.over(t)
	})
	return c, c.flow[side], c.wire[1-side]
}

// heard returns the records the flow has sent, up to its reset.
func heard(t *testing.T, w *fakeWire) (recs []negotiate.Record) {
	var r negotiate.RecordReader
	buf := make([]byte, 1<<16)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		n, err := w.ReadContext(ctx, buf)
		if err != nil {
			return recs
		}
		for b := buf[:n]; ; {
			rec, k, err := r.Next(b)
			require.NoError(t, err)
			if rec.Type == 0 {
				break
			}
			rec.Payload = nil
			recs, b = append(recs, rec), b[k:]
		}
	}
}

func cat(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// TestHostileRecords: a violation ends that connection, with the reason told.
func TestHostileRecords(t *testing.T) {
	p := newPair(t)
	have := negotiate.AppendHave
	for name, tc := range map[string]struct {
		kind  negotiate.CarrierKind
		bytes []byte
	}{ // what is said by records that can be read is judged by the flow's core
		"relay/unknown type":         {negotiate.CarrierRelay, []byte{99, 0, 0, 0, 0, 0, 0, 0}},
		"relay/have of nothing sent": {negotiate.CarrierRelay, have(nil, 1, 0)},
		"shm/abort 0":                {negotiate.CarrierSHM, []byte{6, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0}},
		"shm/data":                   {negotiate.CarrierSHM, append(negotiate.AppendDataHeader(nil, 0, 1), 'x')},
		"shm/have of nothing sent":   {negotiate.CarrierSHM, cat(negotiate.AppendDemote(nil), have(nil, 1, 9))},
	} {
		t.Run(name, func(t *testing.T) {
			c, f, w := p.halfPair(t, tc.kind, 1)
			_, err := w.Write(tc.bytes)
			require.NoError(t, err)
			recs := heard(t, w)
			require.NotEmpty(t, recs)
			require.Equal(t, negotiate.Record{Type: negotiate.RecordAbort, Reason: negotiate.ReasonProtocolError}, recs[len(recs)-1])
			waitBuried(t, f)
			require.Equal(t, life.Aborted, f.state())
			_, err = io.Copy(io.Discard, c.app[1])
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

// TestBytesBehindTheEnd: a peer that writes behind its END loses the connection.
func TestBytesBehindTheEnd(t *testing.T) {
	p := newPair(t)
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c, f, w := p.halfPair(t, kind, 1)
			_, err := w.Write(negotiate.AppendEnd(nil, 1))
			require.NoError(t, err)
			require.Eventually(t, func() (known bool) {
				f.call(func() { known = f.core.Rx != life.RxOpen })
				return known
			}, patience, time.Millisecond)
			peer := c.flow[0]
			peer.call(func() {
				if ep := peer.carries[0].EP; len(ep.WriteSpan()) > 1 {
					err = ep.Commit(2)
				}
				peer.Shard.Flush()
			})
			require.NoError(t, err)
			recs := heard(t, w)
			require.NotEmpty(t, recs)
			require.Equal(t, negotiate.Record{Type: negotiate.RecordAbort, Reason: negotiate.ReasonProtocolError}, recs[len(recs)-1])
			waitBuried(t, f)
			_, err = io.Copy(io.Discard, c.app[1])
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

func waitBuried(t *testing.T, f *Flow) {
	t.Helper()
	require.Eventually(t, f.isBuried, 30*time.Second, time.Millisecond, "%s", f.state())
}

// TestAbortTellsWhy: the peer reads the reason before the reset.
func TestAbortTellsWhy(t *testing.T) {
	p := newPair(t)
	for _, kind := range allCarriers {
		c := p.dial(t, kind)
		c.flow[0].call(func() { c.flow[0].drain(negotiate.ReasonDrained) })
		require.Equal(t, [2]life.Phase{life.Aborted, life.Aborted}, c.over(t))
		for i, by := range []string{report.DecidedLocal, report.DecidedRemote} {
			info := c.flow[i].Info(time.Now())
			require.Equal(t, "drained", info.Reason) // also where it had another one to be relayed
			require.Equal(t, by, info.DecidedBy)
		}
		c.closeApps()
	}
	p.empty(t)
}

// TestAbortBehindHeldRecords: where it would have to wait there is a reset only.
func TestAbortBehindHeldRecords(t *testing.T) {
	p := newPair(t)
	a, b := newFakeWires(3, 3)
	c := p.begin(t, a, b)
	c.meet(t, negotiate.CarrierSHM)
	c.flow[0].call(func() { c.flow[0].carryBy(negotiate.CarrierSHM) })
	c.flow[0].call(func() { c.flow[0].records(nil) })
	require.NoError(t, c.app[0].CloseWrite())
	require.Eventually(t, func() bool { return c.flow[0].state() == life.Closing }, 30*time.Second, time.Millisecond)
	time.Sleep(5 * time.Millisecond)
	c.flow[0].call(func() { c.flow[0].abort(negotiate.ReasonDrained, false) })
	waitBuried(t, c.flow[0])
	require.Equal(t, []byte{2, 0, 0}, b.in, "the beginning of END and nothing else")
	c.flow[1].call(func() { c.flow[1].abort(negotiate.ReasonDrained, false) })
	c.closeApps()
	c.over(t)
}

// TestLinkStaysBehindTheWire: what would have a link left whose wire leg is lost after the
// ENDs, with bytes in its ring that no peer sends again, leaves it where it is.
func TestLinkStaysBehindTheWire(t *testing.T) {
	p := newPair(t)
	for _, kind := range rdmaCarriers {
		for name, leave := range map[string]func(f *Flow){
			"operator": func(f *Flow) { f.Demote(report.DemotedByOperator) },
			"device":   func(f *Flow) { f.LeaveDevice(kind, func(*carrier.Link) bool { return true }, false) },
			"patience": func(f *Flow) { f.post(func() { f.do(f.core.Patience()) }) },
		} {
			t.Run(kind.String()+"/"+name, func(t *testing.T) {
				a, b := newFakeWires(1<<20, 1<<20)
				c := p.begin(t, a, b)
				c.meet(t, kind)
				f := c.flow[1]
				require.NoError(t, c.app[1].SetReadBuffer(16<<10))
				var err error
				f.call(func() { err = unix.SetsockoptInt(f.leg.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10) })
				require.NoError(t, err)
				c.carry(kind)
				sent := make([]byte, 200_000)
				_, err = c.app[0].Write(sent)
				require.NoError(t, err)
				require.NoError(t, c.app[0].CloseWrite())
				require.NoError(t, c.app[1].CloseWrite())
				require.Eventually(t, f.hasAll, patience, time.Millisecond)
				c.wire[1].cut()
				require.Eventually(t, func() (left bool) { // with bytes in the ring
					f.call(func() { left = f.core.Gone() && f.picked.EP.ConsumedOffset() < f.core.Final })
					return left
				}, patience, time.Millisecond)
				leave(f)
				require.NoError(t, c.app[1].SetReadDeadline(time.Now().Add(patience)))
				got, err := io.ReadAll(c.app[1])
				require.NoError(t, err)
				require.Len(t, got, len(sent))
				c.closeApps()
				require.Equal(t, life.Closed, c.over(t)[1])
				require.Empty(t, f.Info(time.Now()).Demoted)
			})
		}
	}
	p.empty(t)
}

// TestWireLostWhileTailIsSent: a wire leg that is lost after both ENDs ends the flow,
// although the bytes that the queue pair left are still being sent again.
func TestWireLostWhileTailIsSent(t *testing.T) {
	p := newPair(t)
	for _, kind := range rdmaCarriers {
		a, w := newFakeWires(1000, 1000)
		c := p.begin(t, a, w)
		c.meet(t, kind)
		f := c.flow[0]
		f.call(func() { f.carryBy(kind) })
		f.call(func() { f.records(nil) })
		_, err := c.app[0].Write(make([]byte, 10_000))
		require.NoError(t, err)
		require.NoError(t, c.app[0].CloseWrite())
		require.Eventually(t, func() bool { return f.state() == life.Closing }, patience, time.Millisecond)
		_, err = w.Write(cat(negotiate.AppendEnd(nil, 0), negotiate.AppendDemote(nil), negotiate.AppendHave(nil, 0, life.Window)))
		require.NoError(t, err)
		_, err = io.ReadAll(c.app[0])
		require.NoError(t, err)
		require.Eventually(t, func() bool { // the wire leg takes no more
			st, ok := f.relayed()
			return ok && st.pushing && st.books.Sent > 0
		}, patience, time.Millisecond)
		w.cut()
		c.closeApps()
		waitBuried(t, f)
		require.Equal(t, life.Closed, f.state())
		c.flow[1].call(func() { c.flow[1].abort(negotiate.ReasonDrained, false) })
		c.over(t)
	}
	p.empty(t)
}

// TestWireLostWhileHaveIsSent: the application gets what is here and its end also
// where the wire leg, lost after both ENDs, has not taken a HAVE.
func TestWireLostWhileHaveIsSent(t *testing.T) {
	p := newPair(t)
	end := negotiate.AppendEnd(nil, 0)
	a, w := newFakeWires(len(end), len(end))
	c := p.begin(t, a, w)
	f := c.flow[0]
	f.call(func() { f.carryBy(negotiate.CarrierRelay) })
	f.call(func() { f.records(nil) })
	require.NoError(t, c.app[0].CloseWrite()) // its END fills the wire leg
	require.Eventually(t, func() bool { return f.state() == life.Closing }, patience, time.Millisecond)
	const n = life.Window
	_, err := w.WriteContext(t.Context(), cat(negotiate.AppendDataHeader(nil, 0, n), make([]byte, n), negotiate.AppendEnd(nil, n)))
	require.NoError(t, err)
	require.NoError(t, c.app[0].SetReadDeadline(time.Now().Add(patience)))
	_, err = io.ReadFull(c.app[0], make([]byte, life.Window/4))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		st, ok := f.relayed()
		return ok && st.pushing && st.books.Rx != life.RxOpen && st.books.Reported > 0
	}, patience, time.Millisecond)
	w.cut()
	rest, err := io.ReadAll(c.app[0])
	require.NoError(t, err)
	require.Len(t, rest, n-life.Window/4)
	c.closeApps()
	waitBuried(t, f)
	require.Equal(t, life.Closed, f.state())
	c.flow[1].call(func() { c.flow[1].abort(negotiate.ReasonDrained, false) })
	c.over(t)
	p.empty(t)
}

// relayed returns where the flow's relay stands, if it has one.
func (f *Flow) relayed() (st relayStand, ok bool) {
	f.call(func() {
		if ok = f.relay != nil; ok {
			st = f.relay.stand()
		}
	})
	return st, ok
}

// TestHaveGoesWithEnd: a server says that it has everything after its own end; a
// client that resets the wire leg says nothing any more.
func TestHaveGoesWithEnd(t *testing.T) {
	p := newPair(t)
	end, have := negotiate.AppendEnd(nil, 0), negotiate.AppendHave(nil, 0, 0)

	c, f, w := p.halfPair(t, negotiate.CarrierSHM, 1)
	_, err := w.Write(end)
	require.NoError(t, err)
	_, err = io.ReadAll(c.app[1])
	require.NoError(t, err)
	require.NoError(t, c.app[1].Close())
	buf := make([]byte, 64)
	n, err := w.ReadContext(t.Context(), buf)
	require.NoError(t, err)
	require.Equal(t, cat(end, have), buf[:n], "in one piece")
	w.Abort()
	waitBuried(t, f)
	require.Equal(t, life.Closed, f.state())

	c, f, w = p.halfPair(t, negotiate.CarrierSHM, 0)
	require.NoError(t, c.app[0].CloseWrite())
	n, err = w.ReadContext(t.Context(), buf)
	require.NoError(t, err)
	require.Equal(t, end, buf[:n])
	_, err = w.Write(cat(end, have))
	require.NoError(t, err)
	_, err = io.ReadAll(c.app[0])
	require.NoError(t, err)
	require.NoError(t, c.app[0].Close())
	require.Empty(t, heard(t, w))
	waitBuried(t, f)
	require.Equal(t, life.Closed, f.state())
}

// TestResetIsLost: a client whose reset was lost is asked for a sign of life.
func TestResetIsLost(t *testing.T) {
	t.Parallel() // it waits
	if testing.Short() {
		t.Skip("waits for the linger")
	}
	p := newPair(t)
	c, f, w := p.halfPair(t, negotiate.CarrierSHM, 1)
	require.NoError(t, c.app[1].CloseWrite())
	_, err := w.Write(negotiate.AppendEnd(nil, 0))
	require.NoError(t, err)
	_, err = io.ReadAll(c.app[1])
	require.NoError(t, err)
	var r negotiate.RecordReader
	var types []negotiate.RecordType
	buf := make([]byte, 64)
	for len(types) < 4 { // the last of them after two lingers
		n, err := w.ReadContext(t.Context(), buf)
		require.NoError(t, err)
		for b := buf[:n]; ; {
			rec, k, err := r.Next(b)
			require.NoError(t, err)
			if rec.Type == 0 {
				break
			}
			types, b = append(types, rec.Type), b[k:]
		}
	}
	require.Equal(t, []negotiate.RecordType{
		negotiate.RecordEnd, negotiate.RecordHave, negotiate.RecordKeepalive, negotiate.RecordKeepalive,
	}, types)
	require.Equal(t, life.Closing, f.state())
	w.Abort() // what its kernel answers
	waitBuried(t, f)
	require.Equal(t, life.Closed, f.state())
}

// TestTeardownOnce: however many want to end a flow, its end is counted once.
func TestTeardownOnce(t *testing.T) {
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	done := make(chan struct{})
	on := func(end func(*Flow)) func() { return func() { c.flow[0].post(func() { end(c.flow[0]) }) } }
	for i, end := range []func(){
		on(func(f *Flow) { f.drain(negotiate.ReasonDrained) }), on((*Flow).replaced),
		on(func(f *Flow) { f.do(f.core.GivenBack(false)) }), on(func(f *Flow) { f.abort(negotiate.ReasonPeerDead, true) }),
		on(func(f *Flow) {
			f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoMemory})
		}),
		func() { c.wire[0].cut() },
	} {
		go func() {
			time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
			end()
			done <- struct{}{}
		}()
	}
	for range 6 {
		<-done
	}
	c.closeApps()
	c.over(t)
	require.Equal(t, 1, len(p.g[0].Closed.List())+len(p.g[0].Native.List()))
	n := uint64(0)
	for _, prov := range p.g[0].snapshot().Fallbacks {
		n += prov.Count
	}
	require.LessOrEqual(t, n, uint64(1))
	p.empty(t)
}

// TestHostileWrite: a peer that writes where it may not loses that connection, not
// only its queue pair.
func TestHostileWrite(t *testing.T) {
	t.Parallel() // it waits
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			c, other := p.dial(t, kind), p.dial(t, kind)
			bad := c.flow[0].chosen()
			mine, err := bad.Arena.AllocLocal(64)
			require.NoError(t, err)
			defer mine.Free()
			wr := verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, RemoteAddr: 1 << 40, RKey: 12345,
				SGList: []verbs.SGE{{Addr: mine.Addr(), Length: 64, LKey: mine.LKey()}},
			}
			bad.Shard.Post(func() {
				assert.NoError(t, bad.QP.PostSend(&wr))
				bad.Shard.Flush()
			})
			if kind == negotiate.CarrierSoft { // it could be a third host's: the peer has to say that it leaves
				require.Never(t, func() bool { return c.flow[1].state() != life.Carrying }, time.Second, 10*time.Millisecond)
			}
			require.Equal(t, [2]life.Phase{life.Aborted, life.Aborted}, c.over(t))
			require.Equal(t, negotiate.ReasonProtocolError.String(), c.flow[1].Info(time.Now()).Reason)
			_, err = io.Copy(io.Discard, c.app[1])
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.Equal(t, life.Carrying, other.flow[1].state())
			c.closeApps()
			other.closeApps()
			other.over(t)
		})
	}
}
