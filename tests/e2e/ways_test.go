package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// waysPort is the port of the server.
const waysPort = 7000

// waysFamily has one family's addresses. Those of a service are on the loopback device of its host; routes lead there
// over eth0 or eth1.
type waysFamily struct {
	name, ip       string
	service, links [2]string // of h1 and h2; links: of eth1
	length         int
}

var waysFamilies = []waysFamily{
	{"4", "", [2]string{"10.78.0.1", "10.78.0.2"}, [2]string{"10.79.0.1", "10.79.0.2"}, 24},
	{"6", "-6 ", [2]string{"fd78::1", "fd78::2"}, [2]string{"fd79::1", "fd79::2"}, 64},
}

// waysWorld is a network with a second link between h1 and h2.
type waysWorld struct {
	*world
	f waysFamily
}

func newWaysWorld(t *testing.T, f waysFamily) *waysWorld {
	w := &waysWorld{newWorld(t, testnet.Config{}), f}
	mustIP(w.t, w.h1, "link add eth1 type veth peer name eth1 netns "+w.h2.Namespace())
	for i, h := range w.hosts() {
		for _, d := range []string{"default", "all", "eth0", "eth1"} {
			require.NoError(t, h.SetSysctl("net.ipv4.conf."+d+".rp_filter", "0"))
		}
		nodad := map[bool]string{true: " nodad"}[f.ip != ""]
		mustIP(w.t, h, fmt.Sprintf("%saddr add %s dev lo%s", f.ip, f.service[i], nodad))
		mustIP(w.t, h, fmt.Sprintf("%saddr add %s/%d dev eth1%s", f.ip, f.links[i], f.length, nodad))
		mustIP(w.t, h, "link set eth1 up")
		w.route(i, "eth0")
	}
	return w
}

func (w *waysWorld) hosts() []*testnet.Host { return []*testnet.Host{w.h1, w.h2} }

// via returns the other host's address on a link of host i.
func (w *waysWorld) via(i int, device string) string {
	peer := w.hosts()[1-i]
	switch {
	case device == "eth1":
		return w.f.links[1-i]
	case w.f.ip == "":
		return peer.Addr4.String()
	default:
		return peer.Addr6.String()
	}
}

// route makes host i reach the other's service over a device.
func (w *waysWorld) route(i int, device string) {
	mustIP(w.t, w.hosts()[i], fmt.Sprintf("%sroute replace %s via %s dev %s src %s",
		w.f.ip, w.f.service[1-i], w.via(i, device), device, w.f.service[i]))
}

// connect makes a connection between the services and returns both ends.
func (w *waysWorld) connect(ln net.Listener) (client, server net.Conn) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), socketPatience)
	defer cancel()
	var err error
	client, err = w.h1.Dial(ctx, "tcp", ln.Addr().String())
	require.NoError(w.t, err)
	return w.accepted(ln, client)
}

// accepted accepts the client's connection and returns both ends, with deadlines.
func (w *waysWorld) accepted(ln net.Listener, client net.Conn) (_, server net.Conn) {
	w.t.Helper()
	w.t.Cleanup(func() { _ = client.Close() })
	server, err := ln.Accept()
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = server.Close() })
	for _, c := range []net.Conn{client, server} {
		require.NoError(w.t, c.SetDeadline(time.Now().Add(socketPatience)))
	}
	return client, server
}

// connectBy makes a connection from a client that is bound to a device.
func (w *waysWorld) connectBy(ln net.Listener, device string) (client, server net.Conn) {
	w.t.Helper()
	d := net.Dialer{Timeout: socketPatience, Control: func(_, _ string, raw syscall.RawConn) error {
		var bound error
		return errors.Join(raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), device) }), bound)
	}}
	require.NoError(w.t, w.h1.Do(func() (err error) {
		client, err = d.DialContext(w.t.Context(), "tcp", ln.Addr().String())
		return err
	}))
	return w.accepted(ln, client)
}

// listen starts the server's listener.
func (w *waysWorld) listen() net.Listener {
	ln, err := w.h2.Listen("tcp", net.JoinHostPort(w.f.service[1], fmt.Sprint(waysPort)))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// says sends from one end and reads at the other.
func (w *waysWorld) says(from, to net.Conn, what string) {
	w.t.Helper()
	_, err := io.WriteString(from, what)
	require.NoError(w.t, err, what)
	b := make([]byte, len(what))
	_, err = io.ReadFull(to, b)
	require.NoError(w.t, err, what)
	require.Equal(w.t, what, string(b))
}

// ends makes both ends close in order.
func (w *waysWorld) ends(first, second net.Conn) {
	w.t.Helper()
	for _, c := range []struct{ from, to net.Conn }{{first, second}, {second, first}} {
		require.NoError(w.t, c.from.(*net.TCPConn).CloseWrite())
		n, err := c.to.Read(make([]byte, 1))
		require.ErrorIs(w.t, err, io.EOF, n)
	}
}

// carriedAll requires that n connections were carried to an orderly end.
func (w *waysWorld) carriedAll(n int) {
	w.t.Helper()
	for h, g := range w.gateways {
		require.Eventually(w.t, func() bool { return len(g.conns("--closed")) == n }, 10*time.Second, 20*time.Millisecond, "%s", h.Name)
		for _, c := range g.conns("--closed") {
			require.Equal(w.t, w.world.via, c.Carrier, "%s: %+v", h.Name, c)
			require.Equal(w.t, report.EndClosed, c.End, "%s: %+v", h.Name, c)
		}
	}
}

// TestFaultWays moves the path to the peer from one of a host's two links to the other: by routes, because the device
// goes down or disappears, or because the device becomes the port of a bridge. What is carried must go on, also if
// the waiting application has sent nothing since.
func TestFaultWays(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"routes", "down", "gone", "port"} {
		for _, f := range matrix.Cells(t, waysFamilies, 1) {
			for i, side := range []string{"client", "server"} {
				t.Run(strings.Join([]string{how, side, f.name}, "-"), func(t *testing.T) {
					w := newWaysWorld(t, f)
					w.start(report.CarrierShm)
					ln := w.listen()
					c1, s1 := w.connect(ln) // the client's application waits
					c2, s2 := w.connect(ln) // the server's application waits
					w.says(c1, s1, "before")
					w.says(s2, c2, "before")
					w.moves(i, how)
					w.says(s1, c1, "to one that waits")
					w.says(c2, s2, "to one that waits")
					w.says(c1, s1, "and back")
					w.says(s2, c2, "and back")
					w.ends(s1, c1)
					w.ends(c2, s2)
					w.carriedAll(2)
				})
			}
		}
	}
}

// TestFaultWaysBound binds the client's application to the device that the path leaves, and later returns to. What is
// carried must go on, as it does without gateways, since the device still reaches the peer's host.
func TestFaultWaysBound(t *testing.T) {
	t.Parallel()
	f := waysFamilies[0] // for IPv6 the kernel refuses a device without a route
	for _, carried := range []bool{false, true} {
		t.Run(map[bool]string{false: "native", true: "carried"}[carried], func(t *testing.T) {
			w := newWaysWorld(t, f)
			mustIP(t, w.h1, "route flush default") // eth0 then reaches neighbours only
			if carried {
				w.start(report.CarrierShm)
			}
			ln := w.listen()
			client, server := w.connectBy(ln, "eth0")
			w.says(client, server, "before")
			w.route(0, "eth1")
			time.Sleep(300 * time.Millisecond) // until the gateway has noticed
			w.says(server, client, "to one that waits")
			w.says(client, server, "and back")
			w.route(0, "eth0")
			time.Sleep(300 * time.Millisecond)
			w.says(server, client, "again")
			w.says(client, server, "and back again")
			w.ends(client, server)
			if carried {
				w.carriedAll(1)
			}
		})
	}
}

// moves moves the path of host i.
func (w *waysWorld) moves(i int, how string) {
	w.t.Helper()
	h := w.hosts()[i]
	switch how {
	case "down":
		mustIP(w.t, h, "link set eth0 down")
	case "gone":
		mustIP(w.t, h, "link del eth0")
	case "port":
		mustIP(w.t, h, "addr flush dev eth0", "link add up0 type bridge", "link set eth0 master up0", "link set up0 up",
			fmt.Sprintf("addr add %s/24 dev up0", h.Addr4), fmt.Sprintf("-6 addr add %s/64 dev up0 nodad", h.Addr6))
		mustIP(w.t, h, fmt.Sprintf("%sroute replace %s via %s dev up0 src %s", w.f.ip, w.f.service[1-i], w.via(i, "eth0"), w.f.service[i]))
		time.Sleep(300 * time.Millisecond) // until the gateway has noticed
		return
	}
	w.route(0, "eth1")
	w.route(1, "eth1")
}

// start starts both gateways, for both links.
func (w *waysWorld) start(via report.Carrier) {
	w.world.via = via
	for _, h := range w.hosts() {
		w.up(h, settings{Devices: "eth0, eth1", Peers: `10.0.0.0/8, "fd00::/8"`})
	}
}

// TestWaysDiffer checks that connections are carried if what a host sends leaves by another device than what it
// receives comes by, because of its routes or of rules about marks.
func TestWaysDiffer(t *testing.T) {
	t.Parallel()
	for _, f := range waysFamilies {
		t.Run("answers-"+f.name, func(t *testing.T) {
			w := newWaysWorld(t, f)
			w.route(1, "eth1")
			w.talks(t, report.CarrierSoft)
		})
		t.Run("client-"+f.name, func(t *testing.T) {
			w := newWaysWorld(t, f)
			w.byMark(0)
			require.NoError(t, w.h1.NFT(`table inet marks { chain c { type route hook output priority mangle; tcp dport 7000 meta mark set 9; }; }`))
			w.talks(t, report.CarrierShm)
		})
		t.Run("server-"+f.name, func(t *testing.T) {
			w := newWaysWorld(t, f)
			w.byMark(1)
			require.NoError(t, w.h2.NFT(`table inet marks {
				chain p { type filter hook prerouting priority mangle; iifname "eth0" ct mark set 9; }
				chain c { type route hook output priority mangle; meta mark set ct mark; }
			}`))
			w.talks(t, report.CarrierShm)
		})
	}
}

// byMark leaves host i a route to the other for marked packets only; others get lost.
func (w *waysWorld) byMark(i int) {
	h, f := w.hosts()[i], w.f
	mustIP(w.t, h, f.ip+"rule add fwmark 9 lookup 109")
	mustIP(w.t, h, fmt.Sprintf("%sroute add %s via %s dev eth0 src %s table 109", f.ip, f.service[1-i], w.via(i, "eth0"), f.service[i]))
	mustIP(w.t, h, fmt.Sprintf("%sroute replace %s dev eth1 src %s", f.ip, f.service[1-i], f.service[i])) // no host answers for it there
}

// talks makes a carried connection from its beginning to its end.
func (w *waysWorld) talks(t *testing.T, via report.Carrier) {
	t.Helper()
	w.start(via)
	ln := w.listen()
	w.inTime(func() bool {
		return w.noneLate(func() {
			client, server := w.connect(ln)
			w.says(client, server, "there")
			w.says(server, client, "and back")
			w.ends(client, server)
		})
	})
	w.carriedAll(1)
}

// TestDirectServerReturn checks that connections are carried if a director on the server's network passes what
// clients send to the service on to the server, and gets no answers (LVS-DR, and other balancers that keep the
// addresses).
func TestDirectServerReturn(t *testing.T) {
	t.Parallel()
	for _, f := range waysFamilies {
		t.Run(f.name, func(t *testing.T) {
			w := newWaysWorld(t, f)
			for _, s := range []string{
				"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
				"net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.eth0.send_redirects=0",
			} {
				name, value, _ := strings.Cut(s, "=")
				require.NoError(t, w.h3.SetSysctl(name, value))
			}
			director, server, client := w.h3.Addr4, w.h2.Addr4, w.h1.Addr4
			if f.ip != "" {
				director, server, client = w.h3.Addr6, w.h2.Addr6, w.h1.Addr6
			}
			mustIP(w.t, w.h1, fmt.Sprintf("%sroute replace %s via %s dev eth0 src %s", f.ip, f.service[1], director, f.service[0]))
			mustIP(w.t, w.h3, fmt.Sprintf("%sroute replace %s via %s dev eth0", f.ip, f.service[1], server))
			mustIP(w.t, w.h2, fmt.Sprintf("%sroute replace default via %s dev eth0", f.ip, client))
			require.NoError(t, w.h3.NFT(`table netdev director { chain c { type filter hook ingress device eth0 priority 0; tcp sport 7000 drop; }; }`))
			w.talks(t, report.CarrierShm)
		})
	}
}
