package gateway

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDatagramBurstWhileThePeerSleeps: what a program sends while the gateway of the
// other host has no processor arrives; what does not fit on the way goes natively.
func TestDatagramBurstWhileThePeerSleeps(t *testing.T) {
	onBoth(t, func(t *testing.T, kind DeviceKind) {
		const count = 1800
		h := newDgramHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("awake"))
		asleep, awake := make(chan struct{}), make(chan struct{})
		go h.engine(1).s.call(func() { close(asleep); <-awake })
		<-asleep
		for i := range uint32(count) {
			h.d[0].steer(t, ends, binary.BigEndian.AppendUint32(nil, i))
		}
		time.Sleep(10 * dgramHold)
		close(awake)
		got := map[uint32]int{}
		for end := time.Now().Add(5 * time.Second); len(got) < count && time.Now().Before(end); {
			for _, d := range h.d {
				for b := d.next(time.Millisecond); b != nil; b = d.next(0) {
					p, err := parseUDP(b)
					require.NoError(t, err)
					require.Equal(t, ends, p.dgramEnds)
					got[binary.BigEndian.Uint32(p.payload)]++
				}
			}
		}
		require.Len(t, got, count, "%+v %+v", h.stats(0), h.stats(1))
		for i, n := range got {
			require.Equal(t, 1, n, i)
		}
		h.pass(0, ends, []byte("carried again"))
	})
}

// TestDatagramsWaitForRoom: a short sleep of the peer changes nothing: all is
// carried, and in order.
func TestDatagramsWaitForRoom(t *testing.T) {
	onBoth(t, func(t *testing.T, kind DeviceKind) {
		h := newDgramHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("awake"))
		const burst = 400 // more than fits
		for i := range uint32(10 * burst) {
			if i%burst == 0 {
				h.engine(1).s.post(func() { time.Sleep(dgramHold / 5) })
			}
			h.d[0].steer(t, ends, binary.BigEndian.AppendUint32(nil, i))
			if i%burst == burst-1 {
				for j := i + 1 - burst; j <= i; j++ {
					require.Equal(t, j, binary.BigEndian.Uint32(h.d[1].receive(t).payload))
				}
			}
		}
		require.Zero(t, h.stats(0).Returned)
	})
}
