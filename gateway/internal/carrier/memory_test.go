package carrier

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

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
