package shm

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

func knock(t *testing.T, path string) (*net.UnixConn, error) {
	t.Helper()
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
}

// A process that connects and says nothing has half of the door: another gets in.
func TestSilentCallers(t *testing.T) {
	dir := t.TempDir()
	d := openDevice(t, dir, func(c *Config) { c.HandshakeTimeout = patience })
	_, err := d.Listen()
	require.NoError(t, err)
	path := filepath.Join(dir, nameOf(d.cfg.GatewayID))
	var silent []*net.UnixConn
	for range 3 * maxHandshakes {
		c, err := knock(t, path)
		require.NoError(t, err)
		silent = append(silent, c)
	}
	eventually(t, patience, func() bool { return d.Stats().Refused >= 3*maxHandshakes-maxPerProcess }, "refusals")
	p, err := d.Offer()
	require.NoError(t, err)
	_, qpn := startChild(t, dir, p)
	require.NotZero(t, qpn)
	for _, c := range silent {
		require.NoError(t, c.Close())
	}
	eventually(t, patience, func() bool {
		d.listener.mu.Lock()
		defer d.listener.mu.Unlock()
		return d.listener.busy == 0 && len(d.listener.by) == 0
	}, "all handshakes over")
}

// Ten thousand callers that hang up, or say half of something with more files than
// there may be, leave nothing behind; the next one with the key gets in.
func TestManyCallers(t *testing.T) {
	d, dir := listening(t)
	p := offer(t, d)
	path := filepath.Join(dir, nameOf(d.cfg.GatewayID))
	h := newHello(t, p)
	wrong := h.m
	wrong.key[0]++
	many := make([]int, 200)
	for i := range many {
		many[i] = h.evt
	}
	calls := 10_000
	if testing.Short() {
		calls = 1000
	}
	before := len(leak.OpenFiles())
	for i := range calls {
		c, err := knock(t, path)
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN) // the queue of the socket is full
			time.Sleep(time.Millisecond)
			continue
		}
		switch i % 4 {
		case 1:
			_, _, _ = c.WriteMsgUnix(h.m.encode()[:40], unix.UnixRights(h.memfd, h.evt), nil)
		case 2:
			_, _, _ = c.WriteMsgUnix(h.m.encode(), unix.UnixRights(many...), nil)
		case 3:
			_, _, _ = c.WriteMsgUnix(wrong.encode(), unix.UnixRights(h.memfd, h.evt), nil)
		}
		_ = c.Close()
	}
	eventually(t, patience, func() bool { return len(leak.OpenFiles()) <= before }, "files closed")
	require.False(t, p.Connected())
	eventually(t, patience, func() bool {
		c := openDevice(t, dir)
		_, err := c.Attach(context.Background(), p.Name(), p.Key())
		return err == nil
	}, "a caller with the key")
}
