package carrier

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

const patience = 30 * time.Second

func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, patience, time.Millisecond, what)
}

// prove proves the client's link, the first one to its peer.
func (c *linked) prove(t *testing.T, sides [2]*side) {
	t.Helper()
	_, err := sides[0].prove(c.link[0], c.to)
	require.NoError(t, err)
	eventually(t, func() bool { return c.user[0].proved.Load() > 0 }, "the proof comes back")
}

// proveBehind proves the client's link after so many others to its peer, of which the first
// has made it warm.
func (c *linked) proveBehind(t *testing.T, sides [2]*side, others int) {
	t.Helper()
	warm, err := sides[0].prove(c.link[0], c.to)
	require.NoError(t, err)
	require.Equal(t, others > 0, warm)
	if !warm {
		eventually(t, func() bool { return c.user[0].proved.Load() > 0 }, "the proof comes back")
		sides[0].on(c.link[0].Proved)
	}
}

// close ends both links.
func (c *linked) close(sides [2]*side) {
	for i, s := range sides {
		s.on(c.link[i].Close)
	}
}

// TestDeclineBehindAProof: a peer that declines a carrier that was offered alone, for it was
// proved, says nothing about the connections that are offered all again: the carrier is not
// warm any more. Others that are under way have offered it alone, too.
func TestDeclineBehindAProof(t *testing.T) {
	for name, of := range providers {
		if name == "shm" { // its proof ends with the peer
			continue
		}
		t.Run(name, func(t *testing.T) {
			sides := newSides(t, 100)
			s := sides[0]
			c := meet(t, sides, of)
			require.False(t, c.link[0].Warm())
			c.proveBehind(t, sides, 0)
			offered := func(warm bool) *Link {
				l, _, err := of(s).Offer(s.request(&fakeUser{}, sides[1].addr))
				require.NoError(t, err)
				require.Equal(t, warm, l.Warm())
				return l
			}
			answered := func(l *Link, a *negotiate.Accept) (outdated bool) {
				s.on(func() { outdated = l.Answered(a, negotiate.ReasonFlowLimit) })
				return outdated
			}
			one, other := offered(true), offered(true)
			require.False(t, answered(one, &negotiate.Accept{}), "it was accepted")
			require.True(t, answered(one, nil))
			require.True(t, answered(other, nil))
			next := offered(false)
			require.False(t, answered(next, nil))
			for _, l := range []*Link{one, other, next} {
				s.on(l.Close)
			}
			c.close(sides)
		})
	}
}

// TestDeclineOfSharedMemory: a peer that has no room is the one that has taken the offer, and one that cannot use
// the offer is another.
func TestDeclineOfSharedMemory(t *testing.T) {
	sides := newSides(t, 100)
	s := sides[0]
	c := meet(t, sides, providers["shm"])
	c.proveBehind(t, sides, 0)
	for _, d := range []struct {
		why   negotiate.Reason
		other bool
	}{{negotiate.ReasonNoMemory, false}, {negotiate.ReasonFlowLimit, false}, {negotiate.ReasonDeviceFailed, true}} {
		s.on(func() { require.Equal(t, d.other, c.link[0].Answered(nil, d.why), d.why) })
		l, _, err := s.shm.Offer(s.request(&fakeUser{}, sides[1].addr))
		require.NoError(t, err)
		require.Equal(t, d.other, !l.Warm(), d.why)
		s.on(l.Close)
	}
	c.close(sides)
}

// TestLinkCarries: a link is proved, carries bytes and leaves nothing behind; the next one
// to the peer is warm.
func TestLinkCarries(t *testing.T) {
	for name, of := range providers {
		t.Run(name, func(t *testing.T) {
			sides := newSides(t, 100)
			for i := range 2 {
				c := meet(t, sides, of)
				c.proveBehind(t, sides, i)
				for i, s := range sides {
					s.on(c.link[i].Begin)
					require.True(t, c.link[i].Carries())
				}
				var err error
				sides[0].on(func() {
					n := copy(c.link[0].EP.WriteSpan(), "hello")
					err = c.link[0].EP.Commit(n)
				})
				require.NoError(t, err)
				eventually(t, func() bool { return c.user[1].read.Load() > 0 }, "the bytes come")
				sides[1].on(func() { require.Equal(t, "hello", string(c.link[1].EP.ReadSpan())) })
				c.close(sides)
				require.True(t, c.link[0].Closed() && !c.link[0].Carries())
				require.ErrorIs(t, sides[0].connect(c.link[0], c.to), ErrClosed)
			}
			for _, s := range sides {
				eventually(t, s.isEmpty, "the memory is back")
			}
		})
	}
}

// TestLinkIsLeft: what was sent and not consumed stays until it has been sent again, and
// what the peer may write to until the peer has left.
func TestLinkIsLeft(t *testing.T) {
	for name, of := range providers {
		t.Run(name, func(t *testing.T) {
			sides := newSides(t, 100)
			c := meet(t, sides, of)
			c.prove(t, sides)
			for i, s := range sides {
				s.on(c.link[i].Begin)
			}
			var sent, written func()
			sides[0].on(func() {
				l := c.link[0]
				require.NoError(t, l.EP.Commit(copy(l.EP.WriteSpan(), "twice")))
				sent, written = l.Depart()
				require.Equal(t, "twice", string(l.EP.Tail(0)))
			})
			require.True(t, c.link[0].Closed())
			sides[0].on(c.link[0].Close) // does nothing any more
			require.NotZero(t, sides[0].Pool.Stats().Used)
			sides[1].on(func() {
				sent, written := c.link[1].Depart()
				sent()
				written()
			})
			sent()
			written()
			written()
			for _, s := range sides {
				eventually(t, s.isEmpty, "the memory is back")
			}
		})
	}
}

// TestLinkFails: its user hears of it, and has what it needs to decide: the peer is there.
func TestLinkFails(t *testing.T) {
	for name, of := range providers {
		t.Run(name, func(t *testing.T) {
			sides := newSides(t, 100)
			c := meet(t, sides, of)
			c.prove(t, sides)
			var err error
			sides[0].on(func() {
				c.link[0].Proved()
				c.link[0].Begin()
				err = c.link[0].QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
			})
			require.NoError(t, err)
			eventually(t, c.user[0].failed.Load, "the user hears of it")
			sides[0].on(func() {
				err = c.link[0].EP.Err()
				require.Error(t, err)
				require.Equal(t, negotiate.ReasonDeviceFailed, c.link[0].Reason(err))
				require.True(t, c.link[0].Survives(err))
				require.False(t, c.link[0].Convicted())
				require.False(t, c.link[0].Warm(), "the carrier has to be proved again")
			})
			c.close(sides)
		})
	}
}

// TestRingIsExchanged: for one of another size, once at a time, and not after the end.
func TestRingIsExchanged(t *testing.T) {
	sides := newSides(t, 100)
	c := meet(t, sides, providers["shm"])
	c.prove(t, sides)
	l := c.link[0]
	var first, second bool
	size := l.EP.RingSize()
	sides[0].on(func() { first, second = l.Exchange(2*size), l.Exchange(size) })
	require.True(t, first && !second)
	eventually(t, func() (now bool) {
		sides[0].on(func() { now = l.EP.RingSize() == 2*size })
		return now
	}, "it comes")
	c.close(sides)
	sides[0].on(func() { first = l.Exchange(size) })
	require.False(t, first)
	require.Zero(t, c.user[0].broken.Load())
	for _, s := range sides {
		eventually(t, s.isEmpty, "the memory is back")
	}
}

// TestColdLinks: a link of its own beside others to a warm peer has everything to prove, and
// the next link is as warm as before.
func TestColdLinks(t *testing.T) {
	for name, of := range providers {
		t.Run(name, func(t *testing.T) {
			sides := newSides(t, 100)
			s := sides[0]
			c := meet(t, sides, of)
			c.prove(t, sides)
			s.on(c.link[0].Proved)
			warm := func(cold bool) (warm bool) {
				r := s.request(&fakeUser{}, sides[1].addr)
				r.Cold = cold
				l, _, err := of(s).Offer(r)
				require.NoError(t, err)
				s.on(func() {
					warm = l.Warm()
					l.Close()
				})
				return warm
			}
			require.True(t, warm(false))
			require.False(t, warm(true))
			require.True(t, warm(false))
			c.close(sides)
		})
	}
}

// TestOwnMemory: bytes go from the memory of one connection into that of the other, where the device lets a peer write
// there, and it is free when its owner and the link have let it go.
func TestOwnMemory(t *testing.T) {
	const size = 128 << 10
	for name, of := range providers {
		t.Run(name, func(t *testing.T) {
			sides := newSides(t, 100)
			var own [2]*Memory
			var send, ring [2][]byte
			var freed atomic.Int32
			for i := range own {
				send[i], ring[i] = make([]byte, size), make([]byte, size)
				own[i] = NewMemory(send[i], ring[i], func() { freed.Add(1) })
			}
			c := meetOn(t, sides, of, own)
			c.prove(t, sides)
			for i, s := range sides {
				s.on(c.link[i].Begin)
				require.Equal(t, size, c.link[i].EP.RingSize())
			}
			copy(send[0], "in place")
			var err error
			sides[0].on(func() {
				if err = c.link[0].EP.SendRing().Produce(8); err == nil {
					_, err = c.link[0].EP.Pump()
				}
			})
			require.NoError(t, err)
			eventually(t, func() bool { return c.user[1].read.Load() > 0 }, "the bytes come")
			sides[1].on(func() {
				require.Equal(t, "in place", string(c.link[1].EP.ReadSpan()))
				require.Equal(t, name != "shm", &c.link[1].EP.ReadSpan()[0] == &ring[1][0])
			})
			own[0].Release()
			c.close(sides)
			eventually(t, func() bool { return freed.Load() == 1 }, "the link has let it go")
			own[1].Release()
			eventually(t, func() bool { return freed.Load() == 2 }, "its owner has, too")
			for _, s := range sides {
				eventually(t, s.isEmpty, "the memory of the pool is back")
			}
		})
	}
}

// TestOwnMemoryInVain: a link that cannot be made holds nothing.
func TestOwnMemoryInVain(t *testing.T) {
	sides := newSides(t, 100)
	var freed atomic.Int32
	for i, m := range []*Memory{
		NewMemory(nil, make([]byte, 4096), func() { freed.Add(1) }),
		NewMemory(make([]byte, 4096), nil, func() { freed.Add(1) }),
		NewMemory(make([]byte, 4096), make([]byte, 1), func() { freed.Add(1) }),
	} {
		r := sides[0].request(&fakeUser{}, sides[1].addr)
		r.Memory = m
		_, _, err := sides[0].soft.Offer(r)
		require.Error(t, err)
		m.Release()
		eventually(t, func() bool { return freed.Load() == int32(i+1) }, "it is free")
	}
}

// userWithoutLeg is one that nothing is asked of.
type userWithoutLeg struct{ User }

// TestWatchedLegs: the peers of links are asked for signs of life by those that have a wire leg.
func TestWatchedLegs(t *testing.T) {
	sides := newSides(t, 100)
	s := sides[0]
	for i, u := range []User{userWithoutLeg{&fakeUser{}}, &fakeUser{}} {
		l, _, err := s.soft.Offer(s.request(u, sides[1].addr))
		require.NoError(t, err)
		s.on(l.Begin)
		v := &farPeerOf(l).keepalive
		v.mu.Lock()
		require.Len(t, v.flows, i)
		v.mu.Unlock()
		s.on(l.Close)
	}
}

// An idle connection has a link.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Link](t, 320)
}
