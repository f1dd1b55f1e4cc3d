package socket

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// duo is two stacks that can reach each other, and how they connect.
type duo struct {
	t       testing.TB
	a, b    *Stack
	da, db  verbs.Device
	connect func(ca, cb ConnConfig) (*Conn, *Conn)
}

// pair makes a connection: the first end of stack a, the second of stack b.
func (d *duo) pair(cfg ConnConfig) (*Conn, *Conn) { return d.connect(cfg, cfg) }

func (d *duo) close() {
	d.t.Helper()
	errs := make(chan error, 2)
	for _, s := range []*Stack{d.a, d.b} {
		go func() { errs <- s.Close() }()
	}
	for range 2 {
		select {
		case err := <-errs:
			require.NoError(d.t, err)
		case <-time.After(30 * time.Second):
			require.Fail(d.t, "stack does not close")
		}
	}
	require.NoError(d.t, d.da.Close())
	require.NoError(d.t, d.db.Close())
}

func socketPair(t testing.TB) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	x, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	y, err := l.Accept()
	require.NoError(t, err)
	return x, y
}

// softDuo are two software devices with addresses of this host, or one if the second has none.
func softDuo(t testing.TB, addrs [2]string, vectors int, cfg StackConfig) *duo {
	open := func(addr string, port uint16) (*soft.Device, error) {
		return soft.Open(soft.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}, UDPPort: port, Vectors: vectors})
	}
	for range 100 {
		port := uint16(20000 + mathrand.IntN(12000))
		da, err := open(addrs[0], port)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		a, err := NewStack(da, cfg)
		require.NoError(t, err)
		d := &duo{t: t, a: a, b: a, da: da, db: da}
		t.Cleanup(d.close)
		if addrs[1] == "" {
			return d
		}
		db, err := open(addrs[1], port)
		require.NoError(t, err)
		d.db = db
		d.b, err = NewStack(db, cfg)
		require.NoError(t, err)
		d.connect = d.managed(netip.MustParseAddr(addrs[1]))
		return d
	}
	require.Fail(t, "no free port")
	return nil
}

// managed connects by the communication manager, with a listener for each connection.
func (d *duo) managed(server netip.Addr) func(ca, cb ConnConfig) (*Conn, *Conn) {
	return func(ca, cb ConnConfig) (*Conn, *Conn) {
		l, err := (&ListenConfig{Stack: d.b, Config: cb}).Listen(d.t.Context(), netip.AddrPortFrom(server, 0))
		require.NoError(d.t, err)
		defer l.Close()
		a, err := (&Dialer{Stack: d.a, Config: ca, Timeout: 20 * time.Second}).Dial(context.Background(), l.cm.Addr())
		require.NoError(d.t, err)
		b, err := l.AcceptConn(context.Background())
		require.NoError(d.t, err)
		return a, b
	}
}

// duos are the ways to connect that every test of connections is run with.
var duos = map[string]func(t testing.TB, cfg StackConfig) *duo{
	"soft4": func(t testing.TB, cfg StackConfig) *duo {
		return softDuo(t, [2]string{"127.0.0.1", "127.0.0.2"}, 1, cfg)
	},
	"soft6": func(t testing.TB, cfg StackConfig) *duo { return selfDuo(t, 3, cfg) },
}

// selfDuo is one device that connects to itself: IPv6 has one loopback address.
func selfDuo(t testing.TB, vectors int, cfg StackConfig) *duo {
	d := softDuo(t, [2]string{"::1", ""}, vectors, cfg)
	d.connect = d.managed(netip.IPv6Loopback())
	return d
}
