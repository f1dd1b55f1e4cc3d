package bench

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"time"

	"github.com/smcgw/smcgw/bench/report"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/bench/load"
)

// Names of the variants. [report.TCP] is the same programs on hosts with
// nothing of ours.
const (
	OneProxy   = "chain1"   // one HAProxy, on the client's host
	TwoProxies = "chain2"   // one HAProxy per host
	GoSplice   = "gosplice" // one proxy in Go per host, splice(2)
	Shm        = "shm"      // carried over shared memory, profile balanced
	Latency    = "latency"  // the same with profile latency
	Soft1500   = "soft1500" // carried over RoCEv2, link MTU 1500
	Soft9000   = "soft9000" // link MTU 9000
	TCP9000    = "tcp9000"  // as tcp, link MTU 9000
	RC1500     = "rc1500"   // a bare stream of the soft device, no TCP program, link MTU 1500
	RC9000     = "rc9000"   // link MTU 9000
	Attached   = "attached" // gateways on both hosts, not selecting the port
	Released   = "released" // selected, but the server's host has no gateway, and the client's knows
	Plain      = "plain"    // the same, and the client's offers every time
	Auto       = "auto"     // action auto
)

// way is how a variant's programs reach a server's.
type way struct {
	variant        string
	client, server *host
	to             func(service uint16) netip.AddrPort
	begin          func(ctx context.Context) (func(ctx context.Context) error, error)
	used           *used
	stream         func(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) // instead of iperf3's
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// hostNames are a client and a server for each group of variants that cannot
// share hosts; "plain" serves two clients.
var hostNames = []string{
	"tcpa", "tcpb", "jumboa", "jumbob", "shma", "shmb", "lata", "latb", "softa", "softb", "soft9a", "soft9b", "offera", "plain",
}

// build lays the cables, and starts servers, proxies and gateways.
func (n *network) build(ctx context.Context) (map[string]way, error) {
	b := &builder{ctx: ctx, n: n, ways: map[string]way{}}
	for _, step := range []func(){b.native, b.carried, b.toPlain} {
		step()
		if err := errors.Join(b.errs...); err != nil {
			return nil, err
		}
	}
	return b.ways, nil
}

// builder makes ways and collects what goes wrong.
type builder struct {
	ctx  context.Context
	n    *network
	ways map[string]way
	errs []error
}

func (b *builder) cable(client, server string, mtu int) cable {
	c, err := b.n.connect(client, server, mtu)
	b.must(err)
	return c
}

func (b *builder) must(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

func (b *builder) add(variant string, c cable, at netip.Addr, offset uint16, begin func(ctx context.Context) (func(ctx context.Context) error, error)) {
	b.ways[variant] = way{variant: variant, client: c.client, server: c.server, begin: begin, used: &b.n.used, to: func(service uint16) netip.AddrPort {
		return netip.AddrPortFrom(at, service+offset)
	}}
}

// native are the ways without anything of ours.
func (b *builder) native() {
	c := b.cable("tcpa", "tcpb", 1500)
	b.must(b.n.serve(b.ctx, c.server, 0))
	b.must(b.n.proxies(b.ctx, c))
	b.add(report.TCP, c, c.addr, 0, nil)
	local := netip.MustParseAddr("127.0.0.1")
	if installed("haproxy") {
		b.add(OneProxy, c, local, oneProxy, nil)
		b.add(TwoProxies, c, local, twoProxies, nil)
	}
	b.add(GoSplice, c, local, twoSplices, nil)
	jumbo := b.cable("jumboa", "jumbob", 9000)
	b.must(b.n.serve(b.ctx, jumbo.server, 0))
	b.add(TCP9000, jumbo, jumbo.addr, 0, nil)
	b.bare(RC1500, c)
	b.bare(RC9000, jumbo)
}

// bare is the way of a reliable connection of the soft device by itself.
func (b *builder) bare(variant string, c cable) {
	b.must(b.n.start(b.ctx, c.server, "serving", load.Program, "serve", c.addr.String()))
	b.ways[variant] = way{variant: variant, client: c.client, server: c.server, stream: c.bareStream}
}

// gateways starts one at each end of a cable.
func (b *builder) gateways(c cable, s setup) {
	for _, h := range []*host{c.client, c.server} {
		b.must(b.n.up(b.ctx, h, s))
	}
}

// only claims that everything is carried by one carrier.
func only(carrier config.Carrier) claim {
	return claim{carriers: []config.Carrier{carrier}, some: true}
}

// carried are the ways through gateways on both hosts, and past them.
func (b *builder) carried() {
	for _, v := range []struct {
		variant, client, server string
		mtu                     int
		carriers, more          string
		carrier                 config.Carrier
	}{
		{Latency, "lata", "latb", 1500, "[shm]", "profile: latency\n", config.CarrierShm},
		{Soft1500, "softa", "softb", 1500, "[soft]", "", config.CarrierSoft},
		{Soft9000, "soft9a", "soft9b", 9000, "[soft]", "", config.CarrierSoft},
	} {
		c := b.cable(v.client, v.server, v.mtu)
		b.must(b.n.serve(b.ctx, c.server, selected))
		b.gateways(c, setup{devices: []string{c.device}, accelerate: plus(services, selected), carriers: v.carriers, shm: v.variant, more: v.more})
		b.add(v.variant, c, c.addr, selected, watch(only(v.carrier), c.client, c.server))
	}
}

// stale is why a flow is native while the gateway gets no processor.
const stale = "gateway_stale"

// notWorthIt is why a flow of action auto is native.
var notWorthIt = []string{"not_worth_it", "same_kernel"}

// toPlain are the ways of a pair of gateways by shared memory, and those to a
// host that has none.
func (b *builder) toPlain() {
	c, plain := b.cable("shma", "shmb", 1500), b.cable("shma", "plain", 1500)
	offering := b.cable("offera", "plain", 1500)
	b.must(b.n.serve(b.ctx, c.server, selected, unselected, learned))
	b.must(b.n.serve(b.ctx, plain.server, 0))
	b.gateways(c, setup{
		devices:    []string{c.device, plain.device},
		accelerate: plus(services, selected), auto: plus(services, learned), carriers: "[shm]", shm: Shm,
	})
	b.add(Shm, c, c.addr, selected, watch(only(config.CarrierShm), c.client, c.server))
	b.add(Attached, c, c.addr, unselected, watch(claim{reasons: []string{"policy", stale}}, c.client, c.server))
	b.add(Auto, c, c.addr, learned, watch(claim{carriers: []config.Carrier{config.CarrierShm}, reasons: notWorthIt, some: true}, c.client))
	b.add(Released, plain, plain.addr, 0, watch(claim{reasons: []string{"peer_no_option", stale}}, plain.client))
	b.must(b.n.up(b.ctx, offering.client, setup{
		devices: []string{offering.device}, accelerate: services, carriers: "[shm]", shm: Plain,
		more: "fallback: { negative_cache: 100ms }\n",
	}))
	b.add(Plain, offering, offering.addr, 0, watch(claim{reasons: []string{"peer_no_option"}, some: true}, offering.client))
}
