package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// Ports of the services on a server's host, with an offset of 0.
const (
	iperfPort    = 5201 + iota
	sockperfPort // sockperf server --tcp
	redisPort
	echoPort // answers a request of any size
	webPort
	coldPort // like echoPort, but in no policy: trials are refused for ports of rules
)

// services are the ports that policies name and proxies forward.
var services = []uint16{iperfPort, sockperfPort, redisPort, echoPort, webPort}

// Offsets of the ports of services. A policy selects by port, so the same programs run on several ports, and one pair
// of gateways serves several ways.
const (
	selected   = 0
	unselected = 100
	learned    = 200 // action auto
)

// Offsets of the ports of proxies: at 127.0.0.1 of the client's host, and at the address of the server's host.
const (
	firstProxy  = 2000
	secondProxy = 7000
)

func plus(ports []uint16, offset uint16) []uint16 {
	list := make([]uint16, len(ports))
	for i, p := range ports {
		list[i] = p + offset
	}
	return list
}

// serve starts every installed service, once for each offset.
func (n *network) serve(h *host, offsets ...uint16) error {
	var errs []error
	start := func(says string, program ...string) {
		if installed(program[0]) {
			_, err := h.StartReady(says, h.pins.pinned(h.pins.server, program...)...)
			errs = append(errs, err)
		}
	}
	for _, off := range offsets {
		_, err := h.StartApp("serve", "-quiet", fmt.Sprintf("echo=0.0.0.0:%d", echoPort+off), fmt.Sprintf("echo=0.0.0.0:%d", coldPort+off))
		errs = append(errs, err)
		if installed("iperf3") {
			_, err := h.IPerf3Server(iperfPort + off)
			errs = append(errs, err)
		}
		start(testnet.RedisReady, testnet.RedisServer(fmt.Sprint(redisPort+off), "*")...)
		nginx, err := testnet.Nginx(filepath.Join(n.dir, fmt.Sprintf("%s.nginx%d", h.Name, off)), fmt.Sprint(webPort+off), "")
		errs = append(errs, err)
		start(testnet.NginxReady, nginx...)
		start("using recvfrom() to block on socket", "sockperf", "server", "--tcp", "-i", "0.0.0.0", "-p", fmt.Sprint(sockperfPort+off))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("servers of %s: %w", h.Name, err)
	}
	return nil
}

// listening waits until a program listens on a port, for programs that do not report it at once. It looks at the port
// rather than connecting to it, because the program would count the connection.
func (h *host) listening(ctx context.Context, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	want := fmt.Sprintf(":%04X ", port)
	for {
		found := false
		err := h.Do(func() error {
			b, err := os.ReadFile("/proc/thread-self/net/tcp")
			for line := range strings.Lines(string(b)) {
				// The local and the remote address with port, and the state LISTEN.
				f := strings.Fields(line)
				found = found || len(f) > 3 && strings.HasSuffix(f[1]+" ", want) && f[3] == "0A"
			}
			return err
		})
		if err != nil || found {
			return err
		}
		if err := testnet.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("port %d of %s: nothing listens: %w", port, h.Name, err)
		}
	}
}

// proxyHead configures HAProxy to forward streams as it does by default. An ordinary limit of 20,000 descriptors
// permits 9000 connections.
const proxyHead = `global
  maxconn 9000
defaults
  mode tcp
  maxconn 9000
  timeout connect 5s
  timeout client 10m
  timeout server 10m
`

// proxies starts the chain over a cable: one HAProxy on each host.
func (n *network) proxies(ctx context.Context, c cable) error {
	var first, second strings.Builder
	for _, p := range services {
		at := func(a netip.Addr, offset uint16) string { return netip.AddrPortFrom(a, p+offset).String() }
		listen := func(b *strings.Builder, from, to string) {
			fmt.Fprintf(b, "listen %s\n  bind %s\n  server s %s\n", strings.ReplaceAll(from, ":", "-"), from, to)
		}
		listen(&first, at(thisHost, firstProxy), at(c.addr, secondProxy))
		listen(&second, at(c.addr, secondProxy), at(thisHost, 0))
	}
	return errors.Join(n.haproxy(ctx, c.server, second.String(), webPort+secondProxy),
		n.haproxy(ctx, c.client, first.String(), webPort+firstProxy))
}

// haproxy starts an HAProxy and waits until it listens on the last of its ports.
func (n *network) haproxy(ctx context.Context, h *host, listens string, last uint16) error {
	file := filepath.Join(n.dir, h.Name+".haproxy")
	if err := os.WriteFile(file, []byte(proxyHead+listens), 0o600); err != nil {
		return fmt.Errorf("configuration of HAProxy: %w", err)
	}
	p, err := h.Start("haproxy", "-db", "-f", file)
	if err != nil {
		return err
	}
	if err := h.listening(ctx, last); err != nil {
		return fmt.Errorf("HAProxy: %w: %s", err, p.Output())
	}
	return nil
}
