package netstack

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/smcgw/smcgw/packet"
)

// A kernel that answers for a peer that has gone, from TIME_WAIT, ends the connection
// as its reset would. Beside a peer that answers itself, no such answer ends it.
func TestStrangers(t *testing.T) {
	clock := faketime.NewManualClock()
	b := newBench(t, Config{clock: clock})
	c := b.accept(1, 100)
	iss := c.ServerISN()
	answer := func(ack uint32, payload string) {
		b.fromClient(1, 9000, ack, packet.FlagACK, 0, payload)
		clock.Advance(2 * time.Second)
	}
	open := func() {
		t.Helper()
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrWouldBlock)
		require.Zero(t, b.s.Stats().Strangers)
	}
	for _, strange := range []uint32{iss - oldestACK, iss + 2, iss + 1<<31} {
		for range 4 {
			for range 5 {
				answer(strange, "")
			}
			open()
			b.fromClient(1, 101, iss+1, packet.FlagACK, packet.RoleConfirm, "") // the peer itself
		}
	}
	for range 20 {
		answer(iss+1<<31, "no answer to a probe")
	}
	open()
	for range 200 { // soon
		b.fromClient(1, 9000, iss+1<<31, packet.FlagACK, 0, "")
	}
	within(t, "all have come", func() bool { return c.f.strangeACKs.n.Load() == 200 })
	open()
	clock.Advance(strangeTime)
	answer(iss+1<<31, "")
	within(t, "reset", func() bool {
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, ErrWouldBlock)
	})
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.EqualValues(t, 1, b.s.Stats().Strangers)
}

// The same on the client's side, and through a real peer that has gone silent.
func TestStrangersOfClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	transfer(t, c, s, 777)
	transfer(t, s, c, 100)
	within(t, "acked", func() bool { return s.f.una.Load() == s.f.sent.Load() && c.f.una.Load() == c.f.sent.Load() })
	tup := c.Tuple()
	stranger := segmentOf(tup.Remote, tup.Local, 1, c.f.sent.Load()+1<<31, packet.FlagACK, timestamps(), nil)
	for end := time.Now().Add(strangeTime); time.Now().Before(end); time.Sleep(time.Second) {
		w.wire.B().Send(append([]byte(nil), stranger...))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrWouldBlock)
	}
	w.wire.B().Send(stranger)
	readError(t, c, syscall.ECONNRESET)
}
