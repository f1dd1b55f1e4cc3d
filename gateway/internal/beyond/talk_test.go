package beyond

import (
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

// counting is a connection that counts its writes.
type counting struct {
	net.Conn
	writes atomic.Int64
}

func (c *counting) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// running starts a talk whose peer is the connection that it returns.
func running(t *testing.T) (*talk, *counting, net.Conn) {
	t.Helper()
	h := twohosts.Hosts(t)[0]
	log := slog.New(slog.DiscardHandler)
	shard, err := loop.New(0, log)
	require.NoError(t, err)
	shard.Start()
	s, err := Open(Config{
		GatewayID: [16]byte{1}, Port: h.Port, Only: h.Addr, Keys: func() negotiate.Keys { return nil }, Shards: []*loop.Shard{shard},
		Peers: peers.NewTable(config.Limits{}), MaxConns: 100, NativeFor: time.Second, Log: log,
	})
	require.NoError(t, err)
	l, err := net.Listen("tcp", netip.AddrPortFrom(h.Addr, 0).String())
	require.NoError(t, err)
	peer, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	c, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	tk, conn := s.newTalk(h.Addr), &counting{Conn: c}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tk.run(conn, false)
	}()
	t.Cleanup(func() {
		tk.post(func(time.Time) { tk.end(negotiate.ReasonDrained) })
		<-done
		_ = peer.Close()
		s.Close(negotiate.ReasonDrained)
		shard.Halt()
		shard.Detach()
		shard.CloseFDs()
	})
	return tk, conn, peer
}

// do runs a job of the talk, and waits for it.
func do(t *testing.T, tk *talk, job func(now time.Time)) {
	t.Helper()
	done := make(chan struct{})
	require.True(t, tk.post(func(now time.Time) {
		defer close(done)
		job(now)
	}))
	<-done
}

// grantedEnd gives the talk an end that has its memory, and no carrier yet.
func grantedEnd(t *testing.T, tk *talk) *end {
	t.Helper()
	e := newEnd(tk.s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax})
	e.talk, e.phase, e.number = tk, granted, 1
	tk.s.desks[1] = &desk{uses: 1} // an empty one, which is never unmapped
	do(t, tk, func(time.Time) {
		require.NoError(t, e.make(tk, 16))
		tk.all[e], tk.ends[1] = struct{}{}, e
	})
	return e
}

// A control connection that ends while it has last words, and ends go on by the kernel, is closed: nothing more is written.
func TestNothingIsWrittenAfterTheEnd(t *testing.T) {
	tk, conn, peer := running(t)
	grantedEnd(t, tk)
	_, err := peer.Write(make([]byte, 64)) // no message begins so
	require.NoError(t, err)
	require.Eventually(t, func() (over bool) {
		do(t, tk, func(time.Time) { over = tk.over && !tk.writing })
		return over
	}, 10*time.Second, time.Millisecond)
	do(t, tk, func(time.Time) { require.NotEmpty(t, tk.ctl.Pending(), "there are last words") })
	before := conn.writes.Load()
	for range 100 {
		do(t, tk, func(time.Time) {})
	}
	require.Equal(t, before, conn.writes.Load())
}

// slow is a device that makes no offer, and says so when it is told to.
type slow struct {
	carrier.Provider
	kind  negotiate.CarrierKind
	asked chan uint64 // for the ends with these IDs
	told  []chan struct{}
}

func (s slow) Kind() negotiate.CarrierKind { return s.kind }

func (s slow) Offer(r carrier.Request) (*carrier.Link, negotiate.CarrierOffer, error) {
	s.asked <- r.ID
	<-s.told[r.ID]
	return nil, negotiate.CarrierOffer{}, net.ErrClosed
}

// An end for which there is no room yet is offered once there is.
func TestManyAtOnce(t *testing.T) {
	const most, all = 3, 8
	tk, _, _ := running(t)
	dev := slow{kind: negotiate.CarrierSoft, asked: make(chan uint64, all)}
	for range all {
		dev.told = append(dev.told, make(chan struct{}))
	}
	tk.s.cfg.Providers = []carrier.Provider{dev}
	tk.s.cfg.Pays = func(*broker.Half, negotiate.CarrierKind) bool { return true }
	tk.s.desks[1] = &desk{uses: 1}
	var ends []*end
	do(t, tk, func(now time.Time) {
		tk.greeted, tk.most = true, most
		for i := range uint64(all) {
			e := newEnd(tk.s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax, ID: i})
			e.talk = tk
			ends = append(ends, e)
			tk.begin(now, e)
		}
	})
	for range all {
		i, made := <-dev.asked, 0
		do(t, tk, func(time.Time) {
			made = tk.making
			ends[i].phase = granted // as it has no broker that could refuse it
			tk.drop(ends[i])
		})
		require.LessOrEqual(t, made, most)
		close(dev.told[i])
	}
	require.Eventually(t, func() bool { return tk.s.count() == 0 }, 10*time.Second, time.Millisecond)
}

// Shared memory is offered to a peer under the same kernel only.
func TestSharedMemoryIsOfOneKernel(t *testing.T) {
	for _, same := range []bool{true, false} {
		tk, _, _ := running(t)
		var devs [2]slow
		for i, kind := range []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft} {
			devs[i] = slow{kind: kind, asked: make(chan uint64, 1), told: []chan struct{}{make(chan struct{})}}
			tk.s.cfg.Providers = append(tk.s.cfg.Providers, devs[i])
		}
		close(devs[0].told[0])
		tk.s.cfg.Pays = func(*broker.Half, negotiate.CarrierKind) bool { return true }
		tk.s.desks[1] = &desk{uses: 1}
		e := newEnd(tk.s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax})
		do(t, tk, func(now time.Time) {
			if tk.greeted, e.talk = true, tk; !same {
				tk.hello.HostID = [16]byte{1}
			}
			tk.begin(now, e)
		})
		<-devs[1].asked
		require.Equal(t, same, len(devs[0].asked) == 1)
		do(t, tk, func(time.Time) {
			e.phase = granted // as it has no broker that could refuse it
			tk.drop(e)
		})
		close(devs[1].told[0])
	}
}

// A program that asks again and again leaves nothing behind with a peer that takes no more offers.
func TestAskedAgain(t *testing.T) {
	tk, _, _ := running(t)
	do(t, tk, func(now time.Time) {
		var ends []*end
		for range 5 {
			e := newEnd(tk.s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax})
			e.talk, e.phase = tk, granted // as it has no broker that could refuse it
			tk.begin(now, e)
			ends = append(ends, e)
		}
		for _, e := range ends[1:] {
			tk.drop(e)
		}
		require.Equal(t, 1, tk.early.Len())
		require.Same(t, ends[0], tk.early.Front().Value)
		tk.drop(ends[0])
		tk.drop(ends[0])
		require.Zero(t, tk.early.Len())
	})
}

// A peer that this host could not ask, for want of a descriptor, is asked again soon.
func TestNoDescriptorToAsk(t *testing.T) {
	tk, _, _ := running(t)
	s, peer := tk.s, netip.MustParseAddr("192.0.2.7")
	s.cfg.NativeFor, s.cfg.Only = time.Hour, netip.Addr{}
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	lift := func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }
	defer lift()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}))
	e := newEnd(s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax})
	e.hosts = []netip.Addr{peer}
	s.mu.Lock()
	s.known[e.half] = e
	s.mu.Unlock()
	s.seek(e, e.hosts)
	var a absence
	require.Eventually(t, func() (ok bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		a, ok = s.native[peer]
		return ok
	}, 10*time.Second, time.Millisecond)
	lift()
	require.Less(t, time.Until(a.until), 2*metAgain)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Contains(t, s.known, e.half, "it waits")
	delete(s.known, e.half)
}

// A control connection that is over, and has an end which goes on by the kernel, is in nobody's way.
func TestAnotherTalkAfterTheEnd(t *testing.T) {
	tk, _, peer := running(t)
	grantedEnd(t, tk)
	s := tk.s
	s.mu.Lock()
	s.talks[tk.peer] = tk
	s.mu.Unlock()
	require.NoError(t, peer.Close())
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, ends := s.ending[tk]
		return ends && s.talks[tk.peer] == nil
	}, 10*time.Second, time.Millisecond)
	// An end that was to begin with it meanwhile is looked for elsewhere.
	e := newEnd(s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax})
	e.hosts = []netip.Addr{tk.peer}
	s.mu.Lock()
	s.known[e.half], s.met[tk.peer] = e, struct{}{}
	s.mu.Unlock()
	do(t, tk, func(now time.Time) {
		tk.greeted = true
		tk.begin(now, e)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Same(t, e, s.known[e.half])
	require.NotSame(t, tk, e.talk)
	delete(s.known, e.half)
}

// An end whose process is gone waits until the peer has all that it wrote, and no longer than there is a carrier.
func TestCarrierEndsBeforeAllIsSent(t *testing.T) {
	for name, lose := range map[string]func(*talk, time.Time, *end){
		"peer gone":   func(tk *talk, _ time.Time, e *end) { tk.peerEnded(e, &between.PeerEnded{Exited: true}) },
		"peer left":   func(tk *talk, _ time.Time, e *end) { tk.peerEnded(e, &between.PeerEnded{}) },
		"device lost": func(tk *talk, _ time.Time, e *end) { tk.loses(e) },
	} {
		for _, first := range []string{"process", "carrier"} {
			t.Run(name+"/"+first, func(t *testing.T) {
				tk, _, _ := running(t)
				e := grantedEnd(t, tk)
				do(t, tk, func(now time.Time) {
					if first == "process" {
						tk.alone(now, e)
					}
					lose(tk, now, e)
					if first == "carrier" {
						tk.alone(now, e)
					}
				})
				require.Eventually(t, func() bool { return tk.s.count() == 0 }, 10*time.Second, time.Millisecond)
			})
		}
	}
}

// A gateway that ends brings what a process that has ended has written, but does not wait for it for long.
func TestEndWaitsForTheDead(t *testing.T) {
	for _, drains := range []bool{true, false} {
		tk, _, _ := running(t)
		e := grantedEnd(t, tk)
		var began time.Time
		do(t, tk, func(now time.Time) {
			tk.alone(now, e)
			tk.end(negotiate.ReasonDrained)
			if began = now; drains {
				tk.drained(e, 0, 0, false)
			}
		})
		require.Eventually(t, func() bool { return tk.s.count() == 0 }, 10*time.Second, time.Millisecond)
		if !drains {
			require.GreaterOrEqual(t, time.Since(began), closeTime)
		}
	}
}

func (s *Service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// One user leaves room for others.
func TestShareOfUsers(t *testing.T) {
	tk, _, _ := running(t)
	s := tk.s
	took := map[uint32]int{}
	for _, uid := range []uint32{1, 2, 3} {
		for s.enters(uid) {
			took[uid]++
		}
	}
	require.Equal(t, map[uint32]int{1: 75, 2: 25}, took, "of %d", s.cfg.MaxConns)
	s.leaves(1)
	require.True(t, s.enters(3))
	took[1]--
	took[3]++
	for uid, n := range took {
		for range n {
			s.leaves(uid)
		}
	}
	require.Empty(t, s.users)
}

// The early offers of one peer leave room for those of others.
func TestWishesOfOnePeer(t *testing.T) {
	tk, _, _ := running(t)
	s, other := tk.s, tk.s.newTalk(netip.MustParseAddr("192.0.2.7"))
	name := func(n uint64) broker.Sequences { return broker.Sequences{Mine: uint32(n)} }
	for n := range uint64(maxWishesOf) {
		require.True(t, s.find(tk, n, name(n)))
	}
	require.False(t, s.find(tk, maxWishesOf, name(maxWishesOf)))
	require.True(t, s.find(other, 1, name(maxWishesOf)))
	s.forget(tk, 0, name(0))
	require.True(t, s.find(tk, maxWishesOf+1, name(0)))
	s.forget(other, 1, name(maxWishesOf))
	for n := range uint64(maxWishesOf) {
		s.forget(tk, n, name(n))
	}
	s.forget(tk, maxWishesOf+1, name(0))
	require.Empty(t, s.wishes)
}

// A peer that offers large rings gets no more of them than fit, whatever it was told.
func TestLargeRings(t *testing.T) {
	tk, _, _ := running(t)
	s := tk.s
	s.cfg.Memory = 3 * inprocess.PairSize(inprocess.OrderMax)
	s.desks[1] = &desk{uses: 1}
	made := map[uint32]int{}
	do(t, tk, func(time.Time) {
		for _, order := range []uint32{inprocess.OrderMax, inprocess.OrderMin} {
			for range 5 {
				e := newEnd(s, &broker.Half{Member: 1, MostOrder: inprocess.OrderMax})
				e.talk, e.phase = tk, granted // as it has no broker that could refuse it
				if err := e.make(tk, order); err == nil {
					made[order]++
				} else if why := makeReason(err); why != negotiate.ReasonNoMemory {
					t.Error(why)
				}
				tk.all[e] = struct{}{}
			}
		}
	})
	require.Equal(t, map[uint32]int{inprocess.OrderMax: 3, inprocess.OrderMin: 5}, made)
}

// TestRingOrder: the more ends there are, and the fewer bytes are left for rings, the smaller are new ones, so that all
// but the smallest fit.
func TestRingOrder(t *testing.T) {
	t.Parallel()
	for _, memory := range []int64{16 << 20, 1 << 30, 64 << 30} {
		s := &Service{cfg: Config{Memory: memory}}
		last, larger := uint32(inprocess.OrderMax), int64(0)
		for range 4096 {
			order := s.ringOrder(false)
			require.LessOrEqual(t, order, last)
			require.Equal(t, min(order, inprocess.OrderMax-1), s.ringOrder(true))
			if last = order; order > inprocess.OrderMin {
				larger += inprocess.PairSize(order)
			}
			s.rings.Add(inprocess.PairSize(order))
			if s.conns++; s.conns == 256 {
				require.Equal(t, memory > 16<<20, last == fairOrder)
			}
		}
		require.LessOrEqual(t, larger, memory)
		require.Equal(t, memory == 64<<30, last > inprocess.OrderMin)
		s.rings.Store(0)
		s.conns = largeRings - 1
		require.Equal(t, memory > 16<<20, s.ringOrder(false) == inprocess.OrderMax)
	}
}
