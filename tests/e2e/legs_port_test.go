package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestListenersPort checks that a client is carried from every port, including those of the gateways' own listeners.
func TestListenersPort(t *testing.T) {
	t.Parallel()
	for _, gateways := range []bool{false, true} {
		t.Run(fmt.Sprintf("gateways %v", gateways), func(t *testing.T) {
			w := newServed(t)
			require.NoError(t, w.h1.SetSysctl("net.ipv4.tcp_tw_reuse", "1")) // a port can be used again after a second
			ports := []uint16{45678}
			if gateways {
				ports = nil
				for _, h := range []*testnet.Host{w.h1, w.h2} {
					keeper := w.up(h, settings{}).keeper()
					listening := append(listeners(t, keeper, "tcp"), listeners(t, keeper, "tcp6")...)
					require.Len(t, listening, 2)
					ports = append(ports, listening...)
				}
			}
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				for _, port := range ports {
					own, to := netip.MustParseAddrPort(addr(w.h1, port)), netip.MustParseAddrPort(addr(w.h2, echoPort))
					late := w.late()
					echo := func() error { return w.h1.Do(func() error { return echoFrom(own, to) }) }
					require.NoError(t, echo(), "from %s", own)
					for try := 0; try < lateTries && w.late() > late; try++ { // it says nothing of the port
						w.flush()
						late = w.late()
						require.Eventually(t, func() bool { return echo() == nil }, slack, 100*time.Millisecond, "from %s again", own)
					}
					if gateways {
						w.gateways[w.h1].awaitConn(own.String(), func(c report.ConnInfo) bool {
							return c.Local == own && c.Carrier == w.via
						}, "--closed")
					}
				}
			})
		})
	}
}

// echoFrom connects from an address and echoes a byte.
func echoFrom(own, to netip.AddrPort) error {
	fd, err := boundSocket(own, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, sockaddr.Of(to)); err != nil {
		return err
	}
	return echoed(fd)
}

// listeners returns the ports of the listening sockets in the namespace of a process.
func listeners(t *testing.T, pid int, table string) (ports []uint16) {
	t.Helper()
	const local, state, listen = 1, 3, "0A"
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > state && f[state] == listen {
			_, number, _ := strings.Cut(f[local], ":")
			port, err := strconv.ParseUint(number, 16, 16)
			require.NoError(t, err)
			ports = append(ports, uint16(port))
		}
	}
	return ports
}
