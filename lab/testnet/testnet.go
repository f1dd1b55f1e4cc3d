package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config describes a network. The zero value is the network in the package documentation.
type Config struct {
	// Hosts are the names of the hosts, at most 200, all different, letters and digits only
	// and at most 8 of them. Default: h1, h2, h3.
	Hosts []string
	// MTU is that of every link. Default: 1500.
	MTU int
	// NoOffload disables TSO, GSO and GRO on the hosts' devices, so that every packet that the middlebox sees has the
	// size of a packet on the wire. By default they are enabled, and one loss takes a whole super-packet.
	NoOffload bool
}

func (c Config) withDefaults() Config {
	if len(c.Hosts) == 0 {
		c.Hosts = []string{"h1", "h2", "h3"}
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	return c
}

// Network is a switch and the hosts connected to it. It is safe for concurrent use.
type Network struct {
	// RouterAddr4 and RouterAddr6 are the hosts' default gateway, which answers packets to anywhere else with ICMP
	// "network unreachable".
	RouterAddr4, RouterAddr6 netip.Addr

	prefix string
	cfg    Config
	sw     *node
	hosts  []*Host
	behind []*Host
	box    *middlebox
	hop    *hop
	cables atomic.Uint32
}

// networks counts the networks of this process, to make the names of namespaces unique.
var networks atomic.Uint32

// New builds a network; Close removes it. It needs root.
func New(cfg Config) (*Network, error) {
	cfg = cfg.withDefaults()
	if err := Sweep(); err != nil {
		return nil, err
	}
	owner, err := ownerName(os.Getpid())
	if err != nil {
		return nil, err
	}
	n := &Network{
		RouterAddr4: addr4(routerNumber),
		RouterAddr6: addr6(routerNumber),
		prefix:      fmt.Sprintf("%s-%d-", owner, networks.Add(1)),
		cfg:         cfg,
	}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Network) build() (err error) {
	if n.sw, err = newNode(n.prefix + "sw"); err != nil {
		return err
	}
	if err := n.buildSwitch(); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	for i, name := range n.cfg.Hosts {
		h, err := n.addHost(name, i+1)
		if h != nil {
			n.hosts = append(n.hosts, h)
		}
		if err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
	}
	if n.hop, err = startHop(n.sw, n.cfg.MTU); err != nil {
		return fmt.Errorf("hop: %w", err)
	}
	if n.box, err = attachMiddlebox(n); err != nil {
		return fmt.Errorf("middlebox: %w", err)
	}
	return nil
}

// Host returns the host with that name, or nil.
func (n *Network) Host(name string) *Host {
	for _, h := range append(slices.Clone(n.hosts), n.behind...) {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// Hosts returns the hosts on the switch in their configured order.
func (n *Network) Hosts() []*Host { return slices.Clone(n.hosts) }

// Close ends every process on the hosts and removes the network. It is idempotent and returns when everything is gone.
func (n *Network) Close() error {
	var errs []error
	for _, h := range append(slices.Clone(n.behind), n.hosts...) {
		errs = append(errs, h.close())
	}
	n.hosts, n.behind = nil, nil
	if n.box != nil {
		errs = append(errs, n.box.close())
		n.box = nil
	}
	if n.hop != nil {
		errs = append(errs, n.hop.close())
		n.hop = nil
	}
	if n.sw != nil {
		errs = append(errs, n.sw.close())
		n.sw = nil
	}
	return errors.Join(errs...)
}

// node is one namespace with a netlink handle and a thread in it.
type node struct {
	nsName string
	ns     netns.NsHandle
	nl     *netlink.Handle
	th     *thread
}

func newNode(name string) (_ *node, err error) {
	nd := &node{nsName: name}
	if nd.ns, err = newNamespace(name); err != nil {
		return nil, err
	}
	if nd.nl, err = netlink.NewHandleAt(nd.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink in %s: %w", name, err), nd.close())
	}
	if nd.th, err = startThread(nd.ns); err != nil {
		return nil, errors.Join(err, nd.close())
	}
	return nd, nil
}

func (nd *node) close() error {
	if nd.th != nil {
		nd.th.close()
	}
	if nd.nl != nil {
		nd.nl.Close()
	}
	killIn(nd.ns)
	return errors.Join(nd.ns.Close(), deleteNamespace(nd.nsName))
}
