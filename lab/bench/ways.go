package bench

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/internal/comparison"
)

// Names of the variants. [comparison.TCP] is the same programs on hosts without smcgw.
const (
	InProcess     = "inprocess"      // programs with the library: connections are promoted to shared memory
	Between1500   = "between1500"    // likewise between hosts, carried over RoCEv2, link MTU 1500
	Between9000   = "between9000"    // link MTU 9000
	InProcessSpin = "inprocess-spin" // as inprocess, but the ends poll their rings for a while before they sleep

	TwoProxies = "chain2"   // one HAProxy per host
	Shm        = "shm"      // carried over shared memory
	Soft1500   = "soft1500" // carried over RoCEv2, link MTU 1500
	Soft9000   = "soft9000" // link MTU 9000
	TCP9000    = "tcp9000"  // as tcp, link MTU 9000
	RC1500     = "rc1500"   // a bare stream of the soft device, without a TCP program, link MTU 1500
	RC9000     = "rc9000"   // link MTU 9000
	Attached   = "attached" // gateways on both hosts, not selecting the port
	Released   = "released" // selected, but the server's host has no gateway, and the client's gateway knows that
	Plain      = "plain"    // as released, but the client's gateway offers every time
	Auto       = "auto"     // action auto
)

// otherPrefix is the prefix of the names of the ways of [Options.Other].
const otherPrefix = "other-"

// loopback is the prefix of the names of ways whose client is on the server's host. They belong to works of their own,
// whose variants have the same names.
const loopback = "loopback-"

// way is how a variant's programs reach a server's.
type way struct {
	variant        string
	place          string // loopback, or empty
	client, server *host
	from           netip.Addr // the client's address
	to             func(service uint16) netip.AddrPort
	begin          func(ctx context.Context) (func(ctx context.Context) error, error)
	used           *used
	stream         func(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) // instead of iperf3's
}

// address returns an address as host and port, for programs that take them separately.
func (w way) address(service uint16) (ip, port string) {
	at := w.to(service)
	return at.Addr().String(), strconv.Itoa(int(at.Port()))
}

// name returns the name of the way.
func (w way) name() string { return w.place + w.variant }

// kind returns the variant, regardless of the gateway it belongs to.
func (w way) kind() string { return strings.TrimPrefix(w.variant, otherPrefix) }

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// groups are the hosts, and the variants for which they are: a client and a server for each group of variants that
// cannot share them. "plain" serves two clients.
var groups = []struct {
	hosts, variants []string
	gateway         bool
}{
	{[]string{"lo"}, []string{loopback + comparison.TCP}, false},
	{[]string{"ipa", "ipb"}, []string{InProcess}, false},
	{[]string{"ips", "ipt"}, []string{InProcessSpin}, false},
	{[]string{"iplo"}, []string{loopback + InProcess}, false},
	{[]string{"ipslo"}, []string{loopback + InProcessSpin}, false},
	{[]string{"tcpa", "tcpb"}, []string{comparison.TCP, TwoProxies, RC1500}, false},
	{[]string{"jumboa", "jumbob"}, []string{TCP9000, RC9000}, false},
	{[]string{"softa", "softb"}, []string{Soft1500}, true},
	{[]string{"soft9a", "soft9b"}, []string{Soft9000}, true},
	{[]string{"beta", "betb"}, []string{Between1500}, true},
	{[]string{"bet9a", "bet9b"}, []string{Between9000}, true},
	{[]string{"shma", "shmb"}, []string{Shm, Attached, Auto, Released}, true},
	{[]string{"plain"}, []string{Released, Plain}, true},
	{[]string{"offera"}, []string{Plain}, true},
}

// everyWay returns a way without hosts for every possible variant.
func everyWay(other bool) map[string]way {
	ways := map[string]way{}
	for _, g := range groups {
		for _, v := range g.variants {
			variant, local := strings.CutPrefix(v, loopback)
			ways[v] = way{variant: variant}
			if local {
				ways[v] = way{variant: variant, place: loopback}
			}
			if other && g.gateway {
				ways[otherPrefix+v] = way{variant: otherPrefix + v}
			}
		}
	}
	return ways
}

// build creates the hosts and cables that the wanted variants need, and starts servers, proxies and gateways. Those of
// another program get hosts of their own.
func (n *network) build(ctx context.Context, executable, other, library string, wanted []string) (map[string]way, error) {
	b := &builder{ctx: ctx, n: n, wanted: wanted, executable: executable, library: library, ways: map[string]way{}}
	var names []string
	for _, g := range groups {
		for _, of := range []struct{ variants, hosts string }{{"", ""}, {otherPrefix, otherHost}} {
			if slices.ContainsFunc(g.variants, func(v string) bool { return slices.Contains(wanted, of.variants+v) }) {
				for _, name := range g.hosts {
					names = append(names, of.hosts+name)
				}
			}
		}
	}
	if err := n.makeHosts(names); err != nil {
		return nil, err
	}
	steps := []func(){b.native, b.local, b.inProcess, b.carried, b.shared}
	if other != "" {
		steps = append(steps, func() { b.executable, b.hosts, b.variants = other, otherHost, otherPrefix }, b.carried, b.shared)
	}
	for _, step := range steps {
		step()
		if err := errors.Join(b.errs...); err != nil {
			return nil, err
		}
	}
	return b.ways, nil
}

// otherHost is the prefix of the names of hosts with the other gateway.
const otherHost = "o"

// builder makes ways and collects errors.
type builder struct {
	ctx  context.Context
	n    *network
	ways map[string]way
	errs []error

	wanted  []string // names of ways
	library string   // empty if there is none
	// The gateways' program, and the prefixes of the names of its hosts and ways.
	executable, hosts, variants string
}

// wants reports whether one of some variants is to be compared.
func (b *builder) wants(variants ...string) bool {
	return slices.ContainsFunc(variants, func(v string) bool { return slices.Contains(b.wanted, b.variants+v) })
}

func (b *builder) cable(client, server string, mtu int) cable {
	c, err := b.n.connect(b.hosts+client, b.hosts+server, mtu)
	b.must(err)
	return c
}

func (b *builder) must(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

func (b *builder) add(variant string, c cable, at netip.Addr, offset uint16, begin func(ctx context.Context) (func(ctx context.Context) error, error)) {
	variant = b.variants + variant
	b.ways[variant] = way{variant: variant, client: c.client, server: c.server, from: c.local, begin: begin, used: &b.n.used, to: func(service uint16) netip.AddrPort {
		return netip.AddrPortFrom(at, service+offset)
	}}
}

// native makes the ways without smcgw. Plain TCP is present for everything that uses its hosts.
func (b *builder) native() {
	if b.wants(comparison.TCP, TwoProxies, RC1500) {
		c := b.cable("tcpa", "tcpb", 1500)
		b.must(b.n.serve(c.server, 0))
		b.add(comparison.TCP, c, c.addr, 0, nil)
		if b.wants(TwoProxies) {
			b.chain(c)
		}
		if b.wants(RC1500) {
			b.bare(RC1500, c)
		}
	}
	if b.wants(TCP9000, RC9000) {
		jumbo := b.cable("jumboa", "jumbob", 9000)
		b.must(b.n.serve(jumbo.server, 0))
		b.add(TCP9000, jumbo, jumbo.addr, 0, nil)
		b.bare(RC9000, jumbo)
	}
}

// local makes the way of plain TCP on one host.
func (b *builder) local() {
	if b.wants(loopback + comparison.TCP) {
		h := b.n.host("lo")
		b.must(b.n.serve(h, 0))
		b.addLocal(comparison.TCP, h, nil)
	}
}

var thisHost = netip.MustParseAddr("127.0.0.1")

func (b *builder) addLocal(variant string, h *host, begin func(ctx context.Context) (func(ctx context.Context) error, error)) {
	w := way{variant: variant, place: loopback, client: h, server: h, from: thisHost, begin: begin, used: &b.n.used}
	w.to = func(service uint16) netip.AddrPort { return netip.AddrPortFrom(thisHost, service) }
	b.ways[w.name()] = w
}

// inProcess makes the ways whose programs have the library.
func (b *builder) inProcess() {
	for _, v := range []struct {
		variant, client, server, local string
		spin                           time.Duration
	}{{InProcess, "ipa", "ipb", "iplo", 0}, {InProcessSpin, "ips", "ipt", "ipslo", spin}} {
		if b.library != "" && b.wants(v.variant) {
			c := b.cable(v.client, v.server, 1500)
			if p := b.promote(v.client, v.spin, c.client, c.server); p != nil {
				b.must(b.n.serve(c.server, 0))
				b.add(v.variant, c, c.addr, 0, p.promoted)
			}
		}
		if b.library != "" && b.wants(loopback+v.variant) {
			h := b.n.host(v.local)
			if p := b.promote(v.local, v.spin, h); p != nil {
				b.must(b.n.serve(h, 0))
				b.addLocal(v.variant, h, p.promoted)
			}
		}
	}
}

// promote gives hosts a broker. It returns nil if it fails.
func (b *builder) promote(name string, spin time.Duration, hosts ...*host) *promotion {
	p, err := b.n.promote(b.library, name, spin)
	b.must(err)
	for _, h := range hosts {
		h.promotion = p
		h.Environment(p.environment)
	}
	return p
}

// chain makes the way through proxies.
func (b *builder) chain(c cable) {
	if installed("haproxy") {
		b.must(b.n.proxies(b.ctx, c))
		b.add(TwoProxies, c, thisHost, firstProxy, nil)
	}
}

// bare makes the way of a reliable connection of the soft device alone.
func (b *builder) bare(variant string, c cable) {
	p, err := c.server.StartApp(rcProgram, "serve", c.addr.String())
	if err == nil {
		err = p.WaitOutput(b.ctx, rcServing)
	}
	b.must(err)
	b.ways[variant] = way{variant: variant, client: c.client, server: c.server, stream: c.bareStream}
}

// up starts a gateway on each of some hosts concurrently.
func (b *builder) up(s setup, hosts ...*host) {
	s.executable, s.shm = b.executable, b.variants+s.shm
	var all errgroup.Group
	for _, h := range hosts {
		all.Go(func() error { return b.n.up(b.ctx, h, s) })
	}
	b.must(all.Wait())
}

// only claims that everything is carried by one carrier.
func only(carrier report.Carrier) claim {
	return claim{carriers: []report.Carrier{carrier}, some: true}
}

// carried makes the ways through the soft device: through gateways on both hosts, and from ring to ring.
func (b *builder) carried() {
	for _, v := range []struct {
		variant, client, server string
		mtu                     int
	}{{Soft1500, "softa", "softb", 1500}, {Soft9000, "soft9a", "soft9b", 9000}} {
		if b.wants(v.variant) {
			c := b.cable(v.client, v.server, v.mtu)
			b.must(b.n.serve(c.server, selected))
			b.up(setup{devices: []string{c.device}, accelerate: plus(services, selected), carriers: "[soft]", shm: v.variant}, c.client, c.server)
			b.add(v.variant, c, c.addr, selected, watch(only(report.CarrierSoft), c.client, c.server))
		}
	}
	for _, v := range []struct {
		variant, client, server string
		mtu                     int
	}{{Between1500, "beta", "betb", 1500}, {Between9000, "bet9a", "bet9b", 9000}} {
		if b.library != "" && b.wants(v.variant) {
			c := b.cable(v.client, v.server, v.mtu)
			for _, h := range []*host{c.client, c.server} {
				h.Environment(func(env []string) []string { return adopt.Environment(env, b.library, b.n.broker(h), 0) })
			}
			b.up(setup{devices: []string{c.device}, rings: services, carriers: "[soft]", shm: v.variant}, c.client, c.server)
			b.must(b.n.serve(c.server, 0))
			b.add(v.variant, c, c.addr, 0, rings(c.client, c.server))
		}
	}
}

// stale is the reason why a flow is native while the gateway gets no processor.
const stale = "gateway_stale"

// shared makes the ways through a pair of gateways with shared memory, and those to a host without a gateway.
func (b *builder) shared() {
	if b.wants(Released, Plain) {
		b.must(b.n.serve(b.n.host(b.hosts+"plain"), 0))
	}
	if b.wants(Shm, Attached, Auto, Released) {
		c := b.cable("shma", "shmb", 1500)
		b.must(b.n.serve(c.server, selected, unselected, learned))
		s := setup{
			devices:    []string{c.device},
			accelerate: plus(services, selected), auto: plus(services, learned), carriers: "[shm]", shm: Shm,
		}
		if b.wants(Released) {
			plain := b.cable("shma", "plain", 1500)
			s.devices = append(s.devices, plain.device)
			b.add(Released, plain, plain.addr, 0, watch(claim{reasons: []string{"peer_no_option", stale}}, plain.client))
		}
		b.up(s, c.client, c.server)
		b.add(Shm, c, c.addr, selected, watch(only(report.CarrierShm), c.client, c.server))
		b.add(Attached, c, c.addr, unselected, watch(claim{reasons: []string{"policy", stale}}, c.client, c.server))
		b.add(Auto, c, c.addr, learned, watch(claim{reasons: []string{"not_worth_it", stale}}, c.client))
	}
	if b.wants(Plain) {
		c := b.cable("offera", "plain", 1500)
		b.up(setup{
			devices: []string{c.device}, accelerate: services, carriers: "[shm]", shm: Plain,
			more: "fallback: { negative_cache: 100ms }\n",
		}, c.client)
		b.add(Plain, c, c.addr, 0, watch(claim{reasons: []string{"peer_no_option"}, some: true}, c.client))
	}
}
