package testnet

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// DNSServer starts an ordinary dnsmasq on all addresses of the host. It knows only the names in records, asks no other
// server, and logs every query with its source. A record is an option of dnsmasq without its dashes, such as
// "address=/www.test/192.0.2.1".
func (h *Host) DNSServer(port uint16, records ...string) (*Proc, error) {
	args := []string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--no-dhcp-interface=*",
		"--user=root", "--pid-file=", "--log-facility=-", "--log-queries=extra", "--log-async=0",
		"--edns-packet-max=4096", "--cache-size=0", "--port", strconv.Itoa(int(port)),
	}
	for _, r := range records {
		args = append(args, "--"+r)
	}
	return h.StartReady("started, version", append([]string{"dnsmasq"}, args...)...)
}

// Dig runs dig on the host and returns its output; args are added to its command line. It queries once, and only by
// UDP.
func (h *Host) Dig(ctx context.Context, server netip.AddrPort, name, kind string, args ...string) (string, error) {
	args = append([]string{
		"@" + server.Addr().String(), "-p", strconv.Itoa(int(server.Port())), name, kind,
		"+short", "+tries=1", "+time=3", "+ignore", "+bufsize=4096",
	}, args...)
	out, err := h.Run(ctx, "dig", args...)
	return strings.TrimSpace(out), err
}

// SockperfServer starts a sockperf server on one address of the host. The program supports only IPv4.
func (h *Host) SockperfServer(port uint16) (*Proc, error) {
	return h.StartReady("using recvfrom() to block on socket", "sockperf", "server", "-i", h.Addr4.String(), "-p", strconv.Itoa(int(port)))
}

// Sockperf runs a UDP ping-pong on the host; args are added to its command line.
func (h *Host) Sockperf(ctx context.Context, server netip.AddrPort, args ...string) (Sockperf, error) {
	args = append([]string{
		"ping-pong", "-i", server.Addr().String(), "-p", strconv.Itoa(int(server.Port())), "--data-integrity", "--pre-warmup-wait", "1",
	}, args...)
	cmd := h.Command(ctx, "sockperf", args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return Sockperf{}, fmt.Errorf("sockperf: %w: %s", err, out)
	}
	return ParseSockperf(string(out))
}
