package twohosts

import (
	"net"
	"net/netip"
	"os"
	"testing"
)

// Host is one of the two hosts.
type Host struct {
	Addr netip.Addr
	Port uint16 // of the soft device; free on both hosts
	Dir  string // for rendezvous; the same for both
}

// Addr returns the address of host number n, 1 to 7. It is specific to this process, so tests in other processes may
// use the same ports at the same time.
func Addr(n int) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 | pid>>13&7), byte(pid >> 5), byte(pid&31<<3 | n)})
}

// Addrs returns the addresses of the client's and the server's host.
func Addrs() [2]netip.Addr { return [2]netip.Addr{Addr(1), Addr(2)} }

// FreePort returns a UDP port that is currently free on all IPv4 addresses.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	c, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// Dir creates a directory for rendezvous, which is removed with the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw") //nolint:usetesting // short: the rendezvous is a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Hosts returns the client's and the server's host.
func Hosts(t testing.TB) (hosts [2]Host) {
	t.Helper()
	dir, port := Dir(t), FreePort(t)
	for i, addr := range Addrs() {
		hosts[i] = Host{Addr: addr, Port: port, Dir: dir}
	}
	return hosts
}
