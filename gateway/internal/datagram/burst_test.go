package datagram

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestDatagramBurstWhileThePeerSleeps: what a program sends while the gateway of the
// other host has no processor arrives; what does not fit on the way goes natively.
func TestDatagramBurstWhileThePeerSleeps(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		for try := 0; !burst(t, kind); try++ {
			require.Less(t, try, lateTries, "the peer is always given up")
		}
	})
}

// burst tells whether the peer was not given up, as one that sleeps for longer than it should.
func burst(t *testing.T, kind report.DeviceKind) bool {
	const count = 1800
	h := newHosts(t, kind)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("awake"))
	longest := h.stoodStill()
	asleep, awake := make(chan struct{}), make(chan struct{})
	go h.engine(1).s.Call(func() { close(asleep); <-awake })
	<-asleep
	for i := range uint32(count) {
		h.d[0].steer(t, ends, binary.BigEndian.AppendUint32(nil, i))
	}
	time.Sleep(10 * holdFor)
	close(awake)
	got := map[uint32]int{}
	for end := time.Now().Add(patience); len(got) < count && time.Now().Before(end); {
		for _, d := range h.d {
			for b := d.Next(time.Millisecond); b != nil; b = d.Next(0) {
				p, err := parseUDP(b)
				require.NoError(t, err)
				require.Equal(t, ends, p.endPair)
				got[binary.BigEndian.Uint32(p.payload)]++
			}
		}
	}
	require.Len(t, got, count, "%+v %+v", h.stats(0), h.stats(1))
	for i, n := range got {
		require.Equal(t, 1, n, i)
	}
	for end := time.Now().Add(patience); !h.passes(t, 0, ends, []byte("again")); time.Sleep(time.Millisecond) { // until the peer has caught up, datagrams go natively
		if !h.d[0].Peer(pairAddrs[1], 0).Capable {
			require.Greater(t, longest(), 500*time.Millisecond, "a short sleep")
			return false
		}
		require.True(t, time.Now().Before(end), "never carried again")
	}
	longest()
	return true
}

// either returns the next datagram of either host, and which it is.
func (h *hosts) either(t *testing.T) (*fakeSteering, udpPacket) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, d := range []*fakeSteering{h.d[1], h.d[0]} {
			if b := d.Next(0); b != nil {
				p, err := parseUDP(b)
				require.NoError(t, err)
				checkSum(t, b)
				return d, p
			}
		}
		_, _ = unix.Poll([]unix.PollFd{
			{Fd: int32(h.d[0].Test), Events: unix.POLLIN}, {Fd: int32(h.d[1].Test), Events: unix.POLLIN},
		}, 100)
	}
	require.Fail(t, "a datagram is lost")
	return nil, udpPacket{}
}

// TestDatagramsWaitForRoom: a short sleep of the peer changes nothing: all is
// carried, and in order. Where the peer gets no processor for longer than that,
// some are native, and the burst says nothing.
func TestDatagramsWaitForRoom(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("awake"))
		const burst = 400 // more than fits
		good, tries := 0, 0
		for end := time.Now().Add(patience); good < 10 && time.Now().Before(end); tries++ {
			if !h.d[0].Peer(pairAddrs[1], 0).Capable { // it slept so long that it was given up
				h = newHosts(t, kind)
				h.meet()
			}
			first := uint32(tries * burst)
			before := h.stats(0).Returned
			h.engine(1).s.Post(func() { time.Sleep(holdFor / 5) })
			for i := range uint32(burst) {
				h.d[0].steer(t, ends, binary.BigEndian.AppendUint32(nil, first+i))
			}
			var carried []uint32
			for range burst {
				d, p := h.either(t)
				if d == h.d[1] {
					carried = append(carried, binary.BigEndian.Uint32(p.payload))
				}
			}
			require.True(t, slices.IsSorted(carried))
			require.EqualValues(t, burst-len(carried), h.stats(0).Returned-before)
			if len(carried) == burst {
				good++
			}
		}
		t.Logf("%d bursts, of which %d were carried whole", tries, good)
		require.Equal(t, 10, good)
	})
}

// TestShardRestsWithoutSlots: while all slots are under way there is nothing to read for, and the loop may sleep until
// a completion.
func TestShardRestsWithoutSlots(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.meet()
	e, ends := h.engine(0), h.ends(0, 4000, 53)
	e.s.Call(func() {
		slots := e.out.free
		e.out.free = nil
		h.d[0].steer(t, ends, []byte("waits"))
		e.readable = true
		worked, _ := e.Progress(e.now)
		assert.False(t, worked)
		assert.True(t, e.Arm())
		e.out.free = slots
		assert.False(t, e.Arm(), "it can be read")
		worked, _ = e.Progress(e.now)
		assert.True(t, worked)
		worked, _ = e.Progress(e.now)
		assert.False(t, worked)
		assert.True(t, e.Arm())
	})
	require.Equal(t, "waits", string(h.d[1].receive(t).payload))
}

// TestFlowEndsWithItsDatagram: a flow that ends because its datagram cannot be posted has ended, once.
func TestFlowEndsWithItsDatagram(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		there := h.ends(0, 4000, 53)
		h.pass(0, there, []byte("one"))
		e := h.engine(0)
		e.s.Call(func() { assert.NoError(t, e.peers[pairAddrs[1]].cur.port.qp.Close()) }) // posting fails from here on
		h.d[0].steer(t, there, []byte("two"))
		require.Eventually(t, func() bool { return len(h.g[0].ended()) > 0 }, patience, time.Millisecond)
		e.s.Call(func() {
			p := e.peers[pairAddrs[1]]
			assert.Zero(t, p.flows.n)
			assert.Nil(t, p.flows.head)
			assert.Zero(t, e.flows.len())
			for _, n := range e.flows.count {
				assert.Zero(t, n.Now)
			}
		})
		require.Len(t, h.g[0].ended(), 1)
	})
}
