package socket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// softDevices opens one device per list of addresses, all on one free port.
func softDevices(t testing.TB, lists ...[]string) (devs []*soft.Device) {
	for range 100 {
		port := uint16(20000 + rand.IntN(12000))
		if devs = tryDevices(t, port, lists); devs != nil {
			return devs
		}
	}
	require.Fail(t, "no free port")
	return nil
}

func tryDevices(t testing.TB, port uint16, lists [][]string) (devs []*soft.Device) {
	for _, list := range lists {
		cfg := soft.Config{UDPPort: port}
		for _, a := range list {
			cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(a))
		}
		d, err := soft.Open(cfg)
		if errors.Is(err, unix.EADDRINUSE) {
			for _, d := range devs {
				require.NoError(t, d.Close())
			}
			return nil
		}
		require.NoError(t, err)
		devs = append(devs, d)
	}
	for _, d := range devs {
		t.Cleanup(func() { require.NoError(t, d.Close()) })
	}
	return devs
}

// stackOn makes a stack on a device, with a protection domain that wrap may change.
func stackOn(t testing.TB, dev verbs.Device, wrap func(verbs.PD) verbs.PD) *Stack {
	s, err := NewStack(dev, StackConfig{})
	require.NoError(t, err)
	if wrap != nil {
		s.domain.pd = wrap(s.domain.pd)
	}
	t.Cleanup(func() { require.NoError(t, s.Close(), "what the socket took is given back") })
	return s
}

func softStacks(t testing.TB, lists ...[]string) (stacks []*Stack) {
	for _, d := range softDevices(t, lists...) {
		stacks = append(stacks, stackOn(t, d, nil))
	}
	return stacks
}

func listenPacket(t testing.TB, cfg PacketListenConfig, local string) *PacketConn {
	c, err := cfg.ListenPacket(context.Background(), ap(local))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (c *PacketConn) addr() netip.AddrPort { return c.socket.Local }

// packetPair is two sockets that can reach each other.
type packetPair struct {
	a, b     *PacketConn
	toA, toB netip.AddrPort // as the other sees them
	ud       bool           // by queue pair
	restartB func() *PacketConn
}

// packetPairs makes every kind of pair.
var packetPairs = map[string]func(t testing.TB, cfg PacketListenConfig) *packetPair{
	"soft IPv4": func(t testing.TB, cfg PacketListenConfig) *packetPair {
		s := softStacks(t, []string{"127.0.0.1"}, []string{"127.0.0.2"})
		return pairOn(t, cfg, s[0], s[1], "127.0.0.1:0", "127.0.0.2:0")
	},
	"soft IPv6": func(t testing.TB, cfg PacketListenConfig) *packetPair {
		s := softStacks(t, []string{"::1"})
		return pairOn(t, cfg, s[0], s[0], "[::1]:0", "[::1]:0")
	},
	"soft wildcard": func(t testing.TB, cfg PacketListenConfig) *packetPair {
		s := softStacks(t, []string{"::1", "127.0.0.1", "127.0.0.3"}, []string{"127.0.0.2"})
		p := pairOn(t, cfg, s[0], s[1], "[::]:0", "127.0.0.2:0")
		p.toA = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p.toA.Port()) // by routing
		return p
	},
	"no device": func(t testing.TB, cfg PacketListenConfig) *packetPair {
		return pairOf(t, cfg, cfg, "127.0.0.1:0", "127.0.0.1:0", false)
	},
	"one device": func(t testing.TB, cfg PacketListenConfig) *packetPair {
		a := cfg
		a.Stacks = softStacks(t, []string{"127.0.0.1"})
		return pairOf(t, a, cfg, "127.0.0.1:0", "127.0.0.1:0", false)
	},
	"plain": func(t testing.TB, cfg PacketListenConfig) *packetPair {
		cfg.Plain = true
		return pairOf(t, cfg, cfg, "127.0.0.1:0", "127.0.0.1:0", false)
	},
}

func pairOn(t testing.TB, cfg PacketListenConfig, x, y *Stack, localA, localB string) *packetPair {
	a, b := cfg, cfg
	a.Stacks, b.Stacks = []*Stack{x}, []*Stack{y}
	return pairOf(t, a, b, localA, localB, true)
}

func pairOf(t testing.TB, a, b PacketListenConfig, localA, localB string, ud bool) *packetPair {
	p := &packetPair{a: listenPacket(t, a, localA), b: listenPacket(t, b, localB), ud: ud}
	p.toA, p.toB = p.a.addr(), p.b.addr()
	p.restartB = func() *PacketConn {
		require.NoError(t, p.b.Close())
		p.b = listenPacket(t, b, p.toB.String())
		return p.b
	}
	return p
}

// resolve lets both sides talk until their datagrams go the way they will go from now on.
func (p *packetPair) resolve(t testing.TB) {
	t.Helper()
	begun := time.Now()
	for i := 0; time.Since(begun) < patience; i++ {
		before := p.b.Stats().SentUD
		p.exchange(t, fmt.Sprintf("hello %d", i))
		if st := p.b.Stats(); !p.ud && i == 3 || p.ud && st.SentUD > before && p.a.Stats().SentUD > 0 {
			return
		}
		time.Sleep(time.Duration(min(i, 50)) * time.Millisecond)
	}
	require.Fail(t, "not resolved", "%+v\n%+v", p.a.Stats(), p.b.Stats())
}

// exchange sends something there and back.
func (p *packetPair) exchange(t testing.TB, what string) {
	t.Helper()
	p.send(t, p.a, p.toB, what)
	from := p.recv(t, p.b, what)
	require.Equal(t, p.toA, from)
	p.send(t, p.b, from, "re: "+what)
	require.Equal(t, p.toB, p.recv(t, p.a, "re: "+what))
}

func (p *packetPair) send(t testing.TB, c *PacketConn, to netip.AddrPort, what string) {
	t.Helper()
	n, err := c.WriteToUDPAddrPort([]byte(what), to)
	require.NoError(t, err)
	require.Equal(t, len(what), n)
}

func (p *packetPair) recv(t testing.TB, c *PacketConn, want string) netip.AddrPort {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 4096)
	n, from, err := c.ReadFromUDPAddrPort(b)
	require.NoError(t, err, "%+v", c.Stats())
	require.Equal(t, want, string(b[:n]))
	return from
}

func eachPair(t *testing.T, cfg PacketListenConfig, f func(t *testing.T, p *packetPair)) {
	for name, make := range packetPairs {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			f(t, make(t, cfg))
		})
	}
}

func TestPacketExchange(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		var before, st PacketStats
		for try := range 10 {
			before = p.a.Stats()
			for i := range 50 {
				p.exchange(t, fmt.Sprint(i))
			}
			if st = p.a.Stats(); !p.ud || st.SentUDP+st.ReceivedUDP == before.SentUDP+before.ReceivedUDP {
				break
			}
			t.Logf("try %d: over UDP, since an answer was late: %+v", try, st)
			p.resolve(t)
		}
		if p.ud {
			require.Equal(t, before.SentUD+50, st.SentUD)
			require.Equal(t, before.ReceivedUD+50, st.ReceivedUD)
		} else {
			require.Zero(t, st.SentUD+st.ReceivedUD+st.Resolved)
		}
		require.Zero(t, st.Overflow+st.Malformed+st.Foreign+st.SendErrors+st.CtrlErrors+st.Unresolvable)
		require.Equal(t, 1, st.Destinations)
	})
}

// Every size, the empty datagram included, keeps its boundaries, and the first one too large is refused.
func TestPacketSizes(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		most := p.a.MaxPayload(p.toB.Addr())
		require.Greater(t, most, 1000)
		payload := make([]byte, most+1)
		_, _ = rand.NewChaCha8([32]byte{}).Read(payload)
		for round := range 2 {
			for _, n := range []int{0, 1, 7, 8, 16, 24, 28, 100, most - 1, most} {
				p.send(t, p.a, p.toB, string(payload[:n]))
				from := p.recv(t, p.b, string(payload[:n]))
				p.send(t, p.b, from, string(payload[:n]))
				p.recv(t, p.a, string(payload[:n]))
			}
			if round == 0 {
				p.resolve(t)
			}
		}
		n, err := p.a.WriteToUDPAddrPort(payload, p.toB)
		if p.a.Stats().SentPlain > 0 {
			require.NoError(t, err) // UDP takes more
			return
		}
		require.Zero(t, n)
		require.ErrorIs(t, err, syscall.EMSGSIZE)
		p.exchange(t, "still there")
	})
}

func TestPacketShortRead(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		p.send(t, p.a, p.toB, "a long one")
		p.send(t, p.a, p.toB, "next")
		b := make([]byte, 4)
		n, _, err := p.b.ReadFrom(b)
		require.NoError(t, err)
		require.Equal(t, "a lo", string(b[:n]))
		p.recv(t, p.b, "next")
	})
}

func TestPacketDeadlines(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		require.NoError(t, p.a.SetDeadline(time.Now().Add(-time.Second)))
		_, _, err := p.a.ReadFrom(make([]byte, 10))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		require.True(t, ne.Timeout())
		_, err = p.a.WriteToUDPAddrPort([]byte("x"), p.toB)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		// A deadline ends a read under way, and can be moved.
		require.NoError(t, p.a.SetDeadline(time.Now().Add(20*time.Millisecond)))
		_, _, err = p.a.ReadFrom(make([]byte, 10))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, p.a.SetDeadline(time.Time{}))
		p.exchange(t, "x")
	})
}

// Close goes before a deadline that has passed: a reader that goes on after timeouts hears of it.
func TestPacketCloseBehindDeadline(t *testing.T) {
	native, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(ap("127.0.0.1:0")))
	require.NoError(t, err)
	for _, c := range []net.PacketConn{native, listenPacket(t, PacketListenConfig{}, "127.0.0.1:0")} {
		require.NoError(t, c.SetDeadline(longAgo))
		_, _, err := c.ReadFrom(make([]byte, 1))
		require.Equal(t, "timeout", kind(err))
		_, err = c.WriteTo([]byte("x"), c.LocalAddr())
		require.Equal(t, "timeout", kind(err))
		require.NoError(t, c.Close())
		require.Equal(t, "closed", kind(c.SetDeadline(longAgo)))
		_, _, err = c.ReadFrom(make([]byte, 1))
		require.Equal(t, "closed", kind(err))
		_, err = c.WriteTo([]byte("x"), c.LocalAddr())
		require.Equal(t, "closed", kind(err))
	}
}

// A datagram that waits for room in the UDP socket does so until the write deadline.
func TestPacketWriteDeadlineOverUDP(t *testing.T) {
	c := listenPacket(t, PacketListenConfig{}, "127.0.0.1:0")
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	raw, err := c.socket.UDP.SyscallConn()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- raw.Write(func(uintptr) bool { return false }) }() // no room
	select {
	case err := <-ended:
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	case <-time.After(patience):
		t.Fatal("the write goes on")
	}
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	_, err = c.WriteToUDPAddrPort([]byte("x"), c.addr())
	require.NoError(t, err)
}

// What comes over UDP is received and answered while a writer waits for room in the UDP socket, and after the write
// deadline.
func TestPacketReceivesBesideWriter(t *testing.T) {
	for local, reached := range map[string]string{"127.0.0.1:0": "127.0.0.1", "[::1]:0": "::1", "[::]:0": "127.0.0.1"} {
		t.Run(local, func(t *testing.T) {
			c := listenPacket(t, PacketListenConfig{Stacks: softStacks(t, []string{"127.0.0.1", "::1"})}, local)
			to := netip.AddrPortFrom(netip.MustParseAddr(reached), c.port)
			peer, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			require.NoError(t, err)
			defer peer.Close()
			raw, err := c.socket.UDP.SyscallConn()
			require.NoError(t, err)
			blocked, release := make(chan struct{}), make(chan struct{})
			var writers sync.WaitGroup
			defer writers.Wait()
			defer close(release)
			writers.Go(func() {
				_ = raw.Write(func(uintptr) bool {
					close(blocked)
					<-release
					return true
				})
			})
			waitFor(t, "no writer", blocked)
			writers.Go(func() { _, _ = c.WriteToUDPAddrPort([]byte("y"), c.addr()) }) // with the buffer of the writers
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(-time.Second)))
			require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
			require.NoError(t, peer.SetDeadline(time.Now().Add(patience)))
			h := rsocket.ResolveHeader{Op: rsocket.ResolveData, QPN: 5, Addr: to.Addr()}
			_, err = peer.Write(append(h.Append(nil), "x"...))
			require.NoError(t, err)
			buf := make([]byte, 100)
			n, _, err := c.ReadFrom(buf)
			require.NoError(t, err)
			require.Equal(t, "x", string(buf[:n]))
			n, err = peer.Read(buf)
			require.NoError(t, err)
			answer, _, err := rsocket.ParseResolveHeader(buf[:n])
			require.NoError(t, err)
			require.Equal(t, rsocket.ResolveCtrl, answer.Op)
			require.Equal(t, c.devices[0].qpn.Load(), answer.QPN)
		})
	}
}

func TestPacketClose(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		require.NoError(t, p.a.SetDeadline(time.Time{}))
		ended := make(chan error)
		go func() {
			_, _, err := p.a.ReadFrom(make([]byte, 10))
			ended <- err
		}()
		p.send(t, p.a, p.toB, "last words")
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, p.a.Close())
		require.ErrorIs(t, <-ended, net.ErrClosed)
		require.NoError(t, p.a.Close())
		_, err := p.a.WriteToUDPAddrPort([]byte("x"), p.toB)
		require.ErrorIs(t, err, net.ErrClosed)
		_, _, err = p.a.ReadFrom(make([]byte, 10))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, p.a.SetDeadline(time.Now()), net.ErrClosed)
		p.recv(t, p.b, "last words")
	})
}

func TestPacketStackClosed(t *testing.T) {
	leak.Check(t)
	s := softStacks(t, []string{"127.0.0.1"}, []string{"127.0.0.2"})
	p := pairOn(t, PacketListenConfig{}, s[0], s[1], "127.0.0.1:0", "127.0.0.2:0")
	p.resolve(t)
	require.NoError(t, s[0].Close())
	_, err := p.a.WriteToUDPAddrPort([]byte("x"), p.toB)
	require.ErrorIs(t, err, net.ErrClosed)
}

// Many goroutines at once: nothing is mixed up.
func TestPacketConcurrent(t *testing.T) {
	eachPair(t, PacketListenConfig{RecvBuffer: 4 << 20, RecvSlots: 1024}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		const writers, each = 4, 200
		var wg, writing sync.WaitGroup
		for _, side := range []struct {
			c  *PacketConn
			to netip.AddrPort
		}{{p.a, p.toB}, {p.b, p.toA}} {
			for w := range writers {
				writing.Go(func() {
					for i := range each {
						if _, err := side.c.WriteTo(bytes.Repeat([]byte{byte(w), byte(i)}, 50+w), net.UDPAddrFromAddrPort(side.to)); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		got := map[*PacketConn]*[writers][256]int{p.a: {}, p.b: {}}
		var mu sync.Mutex
		for _, c := range []*PacketConn{p.a, p.b} {
			require.NoError(t, c.SetReadDeadline(time.Time{}))
			for range 2 {
				wg.Go(func() {
					b := make([]byte, 4096)
					for {
						n, _, err := c.ReadFrom(b)
						if err != nil {
							return
						}
						w, i := int(b[0]), int(b[1])
						if !bytes.Equal(b[:n], bytes.Repeat([]byte{b[0], b[1]}, 50+w)) {
							t.Errorf("mixed up: %x", b[:n])
							return
						}
						mu.Lock()
						got[c][w][i]++
						mu.Unlock()
					}
				})
			}
		}
		writing.Wait()
		enough := func(c *PacketConn) bool {
			mu.Lock()
			defer mu.Unlock()
			total := 0
			for _, of := range got[c] {
				for _, n := range of {
					total += n
				}
			}
			return total > writers*each/50
		}
		for _, c := range []*PacketConn{p.a, p.b} {
			require.Eventually(t, func() bool { return enough(c) }, patience, 10*time.Millisecond, "%+v", c.Stats())
		}
		time.Sleep(50 * time.Millisecond) // for what comes twice
		for _, c := range []*PacketConn{p.a, p.b} {
			require.NoError(t, c.SetReadDeadline(time.Now()))
		}
		wg.Wait()
		for _, g := range got {
			for w := range g {
				for i := range g[w] {
					require.LessOrEqual(t, g[w][i], 1, "doubled")
				}
			}
		}
	})
}

// What is not read is dropped and counted; what is read afterwards is what was kept.
func TestPacketOverflow(t *testing.T) {
	eachPair(t, PacketListenConfig{RecvBuffer: 1000}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		for i := range 40 {
			p.send(t, p.a, p.toB, fmt.Sprintf("%100d", i))
		}
		require.Eventually(t, func() bool { return p.b.Stats().Overflow == 30 }, 30*time.Second, time.Millisecond)
		for i := range 10 {
			p.recv(t, p.b, fmt.Sprintf("%100d", i))
		}
		p.exchange(t, "room again")
	})
}

// A peer that is started again at its address has other queue pairs; what is sent to it arrives soon.
func TestPacketRestart(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		b := p.restartB()
		got := make(chan struct{})
		go func() {
			_, _, err := b.ReadFrom(make([]byte, 10))
			if err == nil {
				close(got)
			}
		}()
		deadline := time.After(patience)
		for {
			p.send(t, p.a, p.toB, "again")
			select {
			case <-got:
			case <-time.After(20 * time.Millisecond):
				continue
			case <-deadline:
				require.Fail(t, "not reached any more", "%+v", p.a.Stats())
			}
			break
		}
	})
}

func TestPacketTableBound(t *testing.T) {
	leak.Check(t)
	s := softStacks(t, []string{"127.0.0.1"})
	a := listenPacket(t, PacketListenConfig{Stacks: s, Destinations: 3}, "127.0.0.1:0")
	var peers []*packetPair
	for range 6 {
		b := listenPacket(t, PacketListenConfig{Stacks: s}, "127.0.0.1:0")
		peers = append(peers, &packetPair{a: a, b: b, toA: a.addr(), toB: b.addr(), ud: true})
	}
	for round := range 3 {
		for i, p := range peers {
			p.exchange(t, fmt.Sprint(round, i))
			require.LessOrEqual(t, a.Stats().Destinations, 3)
		}
	}
	require.GreaterOrEqual(t, a.Stats().Evicted, uint64(6))
}

// A socket that is written to at one of several addresses answers from there,
// by queue pair and over UDP, whatever routing says.
func TestPacketSeveralAddresses(t *testing.T) {
	leak.Check(t)
	s := softStacks(t, []string{"127.0.0.1", "127.0.0.3", "::1"}, []string{"127.0.0.4"}, []string{"127.0.0.2"})
	for _, local := range []string{"[::]:0", "0.0.0.0:0"} {
		a := listenPacket(t, PacketListenConfig{Stacks: s[:2]}, local)
		for _, addr := range []string{"127.0.0.1", "127.0.0.3", "127.0.0.4"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), a.addr().Port())
			b := listenPacket(t, PacketListenConfig{Stacks: s[2:]}, "127.0.0.2:0")
			p := packetPair{a: b, b: a, toA: b.addr(), toB: to, ud: true}
			p.resolve(t)
			p.exchange(t, "from "+addr)
			q := packetPair{a: listenPacket(t, PacketListenConfig{}, "127.0.0.2:0"), b: a, toB: to}
			q.toA = q.a.addr()
			q.exchange(t, "from "+addr)
		}
	}
	// Both IP versions on one socket.
	a := listenPacket(t, PacketListenConfig{Stacks: s[:1]}, "[::]:0")
	for _, addr := range []string{"127.0.0.1", "::1"} {
		at := netip.MustParseAddr(addr)
		b := listenPacket(t, PacketListenConfig{Stacks: s[:1]}, netip.AddrPortFrom(at, 0).String())
		p := packetPair{a: b, b: a, toA: b.addr(), toB: netip.AddrPortFrom(at, a.addr().Port()), ud: true}
		p.resolve(t)
	}
}

// A UDP socket that knows nothing of this talks to us and gets what we say, and nothing else.
func TestPacketNativePeer(t *testing.T) {
	leak.Check(t)
	s := softStacks(t, []string{"127.0.0.1"})
	a := listenPacket(t, PacketListenConfig{Stacks: s}, "127.0.0.1:0")
	native, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a.addr()))
	require.NoError(t, err)
	defer native.Close()
	big := bytes.Repeat([]byte("x"), 30000)
	for _, what := range [][]byte{[]byte("hello"), {}, big} {
		_, err = native.Write(what)
		require.NoError(t, err)
		b := make([]byte, 1<<16)
		n, from, err := a.ReadFrom(b)
		require.NoError(t, err)
		require.Equal(t, native.LocalAddr().String(), from.String())
		require.Equal(t, what, b[:n])
		_, err = a.WriteTo(b[:n], from)
		require.NoError(t, err)
		require.NoError(t, native.SetReadDeadline(time.Now().Add(patience)))
		n, err = native.Read(b)
		require.NoError(t, err)
		require.Equal(t, what, b[:n])
	}
	require.EqualValues(t, 3, a.Stats().SentPlain)
	require.EqualValues(t, 3, a.Stats().ReceivedPlain)
}

func TestPacketBadDestinations(t *testing.T) {
	leak.Check(t)
	a := listenPacket(t, PacketListenConfig{}, "127.0.0.1:0")
	for _, to := range []netip.AddrPort{{}, ap("[::1]:7")} {
		_, err := a.WriteToUDPAddrPort([]byte("x"), to)
		require.Error(t, err)
	}
	_, err := a.WriteTo([]byte("x"), &net.TCPAddr{})
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = a.WriteTo([]byte("x"), (*net.UDPAddr)(nil))
	require.ErrorIs(t, err, syscall.EINVAL)
}

func TestPacketConfig(t *testing.T) {
	cfg := PacketListenConfig{
		Stacks: []*Stack{nil}, RecvBuffer: -1, RecvSlots: -1, SendSlots: 1 << 20, Destinations: -1,
	}
	_, err := cfg.ListenPacket(context.Background(), netip.AddrPort{})
	require.ErrorIs(t, err, rsocket.ErrConfig)
	for _, field := range []string{"stacks[0]", "recv buffer", "recv slots", "send slots", "destinations"} {
		require.ErrorContains(t, err, field)
	}
	require.NoError(t, PacketListenConfig{}.Validate())
}
