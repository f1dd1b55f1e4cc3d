package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf/witness"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/testnet"
)

// host is a host of the network with a cgroup of its own.
type host struct {
	*testnet.Host

	cgroup  *testnet.Cgroup
	gateway *gatewayProcess // nil if there is none
	pins    pins
	// promotion is that of its programs, or nil if they run without the library.
	promotion *promotion
}

// cable connects a client's host with a server's.
type cable struct {
	client, server *host
	local          netip.Addr // the client's address
	addr           netip.Addr // the server's address
	device         string     // its name at both ends
	mtu            int
}

// network is everything that a comparison runs on.
type network struct {
	dir        string
	congestion string
	pins       pins
	used       used
	net        *testnet.Network
	hosts      []*host
	promotions []*promotion
	sequences  *witness.Sequences // nil until a broker needs them
}

// newNetwork returns a network without hosts.
func newNetwork(congestion string) (*network, error) {
	dir, err := os.MkdirTemp("", "smcgw-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // for programs that change their user
		return nil, errors.Join(fmt.Errorf("bench: %w", err), os.Remove(dir))
	}
	return &network{dir: dir, congestion: congestion, pins: thesePins()}, nil
}

// makeHosts creates hosts with these names.
func (n *network) makeHosts(names []string) (err error) {
	if n.net, err = testnet.New(testnet.Config{Hosts: names}); err != nil {
		return fmt.Errorf("make hosts: %w", err)
	}
	for _, th := range n.net.Hosts() {
		h := &host{Host: th, pins: n.pins}
		n.hosts = append(n.hosts, h)
		if err := n.prepare(h); err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	return nil
}

// prepare gives a host its cgroup and the settings that all hosts share: the congestion control, and room for many
// short connections.
func (n *network) prepare(h *host) (err error) {
	if h.cgroup, err = testnet.NewCgroup(filepath.Base(n.dir) + "-" + h.Name); err != nil {
		return err
	}
	h.Within(h.cgroup)
	for name, value := range map[string]string{
		"net.ipv4.tcp_congestion_control": n.congestion,
		"net.ipv4.tcp_tw_reuse":           "1",
		"net.ipv4.ip_local_port_range":    "15000 65000",
		"net.core.somaxconn":              "4096",
	} {
		if err := h.SetSysctl(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) host(name string) *host {
	i := slices.IndexFunc(n.hosts, func(h *host) bool { return h.Name == name })
	return n.hosts[i]
}

// connect connects two hosts with a cable.
func (n *network) connect(client, server string, mtu int) (c cable, err error) {
	c.client, c.server = n.host(client), n.host(server)
	c.mtu = mtu
	if c.local, c.addr, err = n.net.Cable(c.client.Host, c.server.Host, mtu); err != nil {
		return c, err
	}
	// 10.78.N.2 is an end of cableN.
	c.device = fmt.Sprintf("cable%d", c.addr.As4()[2])
	return c, nil
}

func (n *network) close() error {
	var errs []error
	var gateways sync.WaitGroup
	for _, h := range n.hosts {
		if h.gateway != nil {
			h.gateway.admin.Close()
			gateways.Go(func() { _ = h.gateway.proc.Stop(5 * time.Second) })
		}
	}
	gateways.Wait()
	if n.net != nil {
		errs = append(errs, n.net.Close())
	}
	for _, p := range n.promotions {
		errs = append(errs, p.close())
	}
	if n.sequences != nil {
		errs = append(errs, n.sequences.Close())
	}
	for _, h := range n.hosts {
		if h.cgroup != nil {
			errs = append(errs, h.cgroup.Close())
		}
	}
	if n.dir != "" {
		errs = append(errs, os.RemoveAll(n.dir))
	}
	return errors.Join(errs...)
}

// setup is a gateway's program and configuration.
type setup struct {
	executable string
	devices    []string
	accelerate []uint16
	auto       []uint16
	rings      []uint16 // promoted between hosts
	carriers   string   // in YAML
	shm        string   // name of the directory for rendezvous
	more       string   // further lines of YAML
}

const configuration = `schema: smcgw/v1
mode: enforce
admin: %[1]s/%[2]s.sock
devices: [%[3]s]
policy:
%[4]scarriers: %[5]s
shm_dir: %[1]s/%[6]s
state_dir: %[1]s/%[2]s.state
in_process: { socket: %[9]s, between_hosts: on }
cgroup_path: %[7]s
limits: { handshake_timeout: 1s, new_flows_per_second: 100000, new_flows_at_once: 1024, memory: 4GiB, peer_share: 100%% }
%[8]s`

// gatewayProcess is a running gateway.
type gatewayProcess struct {
	proc  *testnet.Proc
	admin *admin.Client
}

// broker returns the path where the gateway of a host serves programs with the library.
func (n *network) broker(h *host) string { return filepath.Join(n.dir, h.Name+".broker") }

// up starts a gateway on a host and waits until it carries.
func (n *network) up(ctx context.Context, h *host, s setup) error {
	var policy strings.Builder
	for _, r := range []struct {
		name, action string
		ports        []uint16
	}{{"accelerate", "accelerate", s.accelerate}, {"auto", "auto", s.auto}, {"rings", "accelerate, way: in-process", s.rings}} {
		if len(r.ports) > 0 {
			list := strings.Join(strings.Fields(fmt.Sprint(r.ports)), ", ")
			fmt.Fprintf(&policy, "  - { name: %s, match: { ports: %s }, action: %s }\n", r.name, list, r.action)
		}
	}
	policy.WriteString("  - { name: default, action: pass }\n")
	p, admin, err := daemon.Start(ctx, h.Host, daemon.Spec{
		Executable: s.executable,
		File:       filepath.Join(n.dir, h.Name+".yaml"),
		Configuration: fmt.Sprintf(configuration, n.dir, h.Name, strings.Join(s.devices, ", "), &policy, s.carriers, s.shm,
			h.cgroup.Path, s.more, n.broker(h)),
		Socket: filepath.Join(n.dir, h.Name+".sock"),
	})
	if p != nil {
		h.gateway = &gatewayProcess{proc: p, admin: admin}
	}
	return err
}

// lastWords says how a gateway ended that is gone, with the relevant part of its output, or returns "" if it is
// running.
func (d *gatewayProcess) lastWords() string {
	select {
	case <-d.proc.Done():
	default:
		return ""
	}
	const most = 600
	said := d.proc.Output()
	for _, sign := range []string{"panic:", "fatal error:"} {
		if i := strings.Index(said, sign); i >= 0 {
			said = said[i:min(len(said), i+most)]
		}
	}
	return fmt.Sprintf("; it ended (%v) and said: %s", d.proc.Wait(), said[max(0, len(said)-most):])
}
