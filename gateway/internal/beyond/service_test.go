package beyond_test

import (
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/beyond"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

const patience = 10 * time.Second

// open starts a service on a loopback address, and returns where it listens.
func open(t *testing.T, keys negotiate.Keys) (*beyond.Service, netip.AddrPort) {
	t.Helper()
	h := twohosts.Hosts(t)[0]
	log := slog.New(slog.DiscardHandler)
	shard, err := loop.New(0, log)
	require.NoError(t, err)
	shard.Start()
	s, err := beyond.Open(beyond.Config{
		GatewayID: [16]byte{1}, Port: h.Port, Only: h.Addr, Keys: func() negotiate.Keys { return keys }, Shards: []*loop.Shard{shard},
		Pays:     func(*broker.Half, negotiate.CarrierKind) bool { return true },
		Peers:    peers.NewTable(config.Limits{}),
		MaxConns: 100, NativeFor: time.Second, Log: log,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close(negotiate.ReasonDrained)
		shard.Halt()
		shard.Detach()
		shard.CloseFDs()
	})
	return s, netip.AddrPortFrom(h.Addr, h.Port)
}

func dial(t *testing.T, at netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// peer is the other end of a control connection, as the machine speaks.
type peer struct {
	t    *testing.T
	conn net.Conn
	ctl  *between.Control
}

func newPeer(t *testing.T, at netip.AddrPort, keys negotiate.Keys) *peer {
	t.Helper()
	c := dial(t, at)
	h := between.Hello{GatewayID: [16]byte{2}}
	_, _ = rand.Read(h.Random[:])
	return &peer{t, c, between.New(between.Config{
		Opener: true, Local: c.LocalAddr().(*net.TCPAddr).AddrPort(), Remote: c.RemoteAddr().(*net.TCPAddr).AddrPort(),
		Hello: h, Keys: keys, MaxConns: 1 << 20, MaxOffers: 1 << 20,
	}, time.Now())}
}

// hears returns what the peer is told next.
func (p *peer) hears() []between.Action {
	p.t.Helper()
	b := make([]byte, 4096)
	for {
		if out := p.ctl.Pending(); len(out) > 0 {
			n, err := p.conn.Write(out)
			require.NoError(p.t, err)
			p.ctl.Wrote(n)
		}
		n, err := p.conn.Read(b)
		if n > 0 {
			if todo := p.ctl.Receive(time.Now(), b[:n]); len(todo) > 0 {
				return todo
			}
			continue
		}
		require.ErrorIs(p.t, err, io.EOF)
		return p.ctl.Broken()
	}
}

func offer(isn uint32) *between.Offer {
	return &between.Offer{
		Name: between.Name{ClientISN: isn, ServerISN: 7, ClientPort: 1, ServerPort: 2}, Order: 16, Nonces: [2][16]byte{{1}, {2}},
		Carriers: []negotiate.CarrierOffer{{Kind: negotiate.CarrierSoft, RoCE: negotiate.RoCEEndpoint{
			GID: netip.MustParseAddr("::ffff:10.0.0.1").As16(), UDPPort: 4791, MTU: 1024, QPN: 2,
		}}},
	}
}

// TestHostilePeers: what a peer says that cannot be ends its own control connection.
func TestHostilePeers(t *testing.T) {
	_, at := open(t, nil)
	good := newPeer(t, at, nil)
	require.IsType(t, between.Greeted{}, good.hears()[0])
	for _, b := range [][]byte{{0}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 1<<20)} {
		c := dial(t, at)
		_, _ = c.Write(b)
		_, err := io.Copy(io.Discard, c)
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "it is closed")
	}
	n, todo := good.ctl.Offer(time.Now(), offer(1))
	require.NotZero(t, n)
	require.Empty(t, todo)
}

// TestKeys: a peer with other keys is told so, and hears nothing else.
func TestKeys(t *testing.T) {
	key := make([]byte, 32)
	_, at := open(t, negotiate.Keys{key})
	require.IsType(t, between.Greeted{}, newPeer(t, at, negotiate.Keys{key}).hears()[0])
	for _, keys := range []negotiate.Keys{nil, {append([]byte{1}, key[1:]...)}} {
		todo := newPeer(t, at, keys).hears()
		require.Equal(t, between.Closed{Reason: negotiate.ReasonAuthFailed, Remote: true}, todo[len(todo)-1])
	}
}

// TestTheFirstOffer of a name is the one that waits for the end; others are declined.
func TestTheFirstOffer(t *testing.T) {
	_, at := open(t, nil)
	var peers [2]*peer
	for i := range peers {
		peers[i] = newPeer(t, at, nil)
		peers[i].hears()
	}
	_, todo := peers[0].ctl.Offer(time.Now(), offer(1))
	require.Empty(t, todo)
	_, todo = peers[0].ctl.Offer(time.Now(), offer(1))
	require.Empty(t, todo)
	lost := peers[0].hears()[0].(between.Lose)
	require.Equal(t, between.Lose{Number: 2, Reason: negotiate.ReasonFlowLimit, Remote: true, Over: true}, lost)
	peers[1].ctl.Offer(time.Now(), offer(1))
	require.Equal(t, between.Lose{Number: 1, Reason: negotiate.ReasonFlowLimit, Remote: true, Over: true}, peers[1].hears()[0])

	_ = peers[0].conn.Close() // what it has offered is forgotten
	require.Eventually(t, func() bool {
		p := newPeer(t, at, nil)
		p.hears()
		p.ctl.Offer(time.Now(), offer(1))
		p.ctl.Offer(time.Now(), offer(1))
		return p.hears()[0].(between.Lose).Number == 2
	}, patience, 10*time.Millisecond)
}

// TestManyFromOneAddress are closed at once.
func TestManyFromOneAddress(t *testing.T) {
	s, at := open(t, nil)
	var peers []*peer
	for range 16 {
		p := newPeer(t, at, nil)
		p.hears()
		peers = append(peers, p)
	}
	_, err := io.Copy(io.Discard, dial(t, at))
	require.NoError(t, err, "it is closed")
	s.Close(negotiate.ReasonDrained)
	todo := peers[0].hears()
	require.Equal(t, between.Closed{Reason: negotiate.ReasonDrained, Remote: true}, todo[len(todo)-1])
}
