package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/lab/testnet"
)

// memoryShow is the demonstration on hosts in memory.
type memoryShow struct {
	Options
	ctx        context.Context
	net        *memhost.Network
	h1, h2, h3 *memhost.Host
	g1, g2     *memhost.Gateway
	servers    []*http.Server
	report     table
}

// RunInMemory shows the same without any privilege: the unchanged gateway on
// hosts whose kernels, wires and steering are models in this process. The
// numbers say nothing about a real host; what is carried and what is not, does.
func RunInMemory(ctx context.Context, opts Options) (err error) {
	s := &memoryShow{Options: opts.withDefaults(), ctx: ctx}
	s.report.out = s.Out
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(); err != nil {
		return err
	}
	for _, step := range []func() error{s.carried, s.plainPeer, s.death} {
		if err := step(); err != nil {
			return err
		}
	}
	return s.report.print()
}

func (s *memoryShow) build() (err error) {
	s.say("three hosts in memory: h1 and h2 run smcgw, h3 does not")
	if s.net, err = memhost.NewNetwork(memhost.Config{}); err != nil {
		return err
	}
	for i, h := range []**memhost.Host{&s.h1, &s.h2, &s.h3} {
		if *h, err = s.net.AddHost(fmt.Sprintf("h%d", i+1)); err != nil {
			return err
		}
	}
	for _, h := range []*memhost.Host{s.h2, s.h3} {
		v4, v6, err := h.Listen(webPort)
		if err != nil {
			return fmt.Errorf("web server on %s: %w", h.Name(), err)
		}
		srv := apps.NewWeb()
		s.servers = append(s.servers, srv)
		go func() { _ = srv.Serve(v4) }()
		go func() { _ = srv.Serve(v6) }()
	}
	if s.g1, err = s.h1.StartGateway(memoryConfig()); err != nil {
		return err
	}
	s.g2, err = s.h2.StartGateway(memoryConfig())
	return err
}

func memoryConfig() memhost.GatewayConfig {
	return memhost.GatewayConfig{
		// Everything runs in one process here, and processes can be slow.
		HeartbeatTimeout: time.Second,
		Config: config.Config{
			Mode:     report.ModeEnforce,
			Policy:   []config.Rule{{Name: "demo", Match: config.Match{Ports: config.Ports(webPort)}, Action: report.ActionAccelerate}},
			Carriers: []report.DeviceKind{report.DeviceShm},
			Limits:   config.Limits{HandshakeTimeout: 2 * time.Second},
		},
	}
}

// client is an ordinary net/http client on h1.
func (s *memoryShow) client() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: s.h1.Dial}}
}

func (s *memoryShow) fetch(to netip.Addr, size int64, count int) apps.Event {
	return apps.Fetch(s.client(), netip.AddrPortFrom(to, webPort).String(), size, count)
}

// memoryWork is what the two programs do with each other.
type memoryWork struct {
	name  string
	size  int64
	count int
}

func (s *memoryShow) works() []memoryWork {
	return []memoryWork{
		{fmt.Sprintf("HTTP download, %d MiB", s.bulk>>20), s.bulk, 1},
		{"HTTP small requests", 100, 500},
	}
}

func (s *memoryShow) carried() error {
	for _, w := range s.works() {
		for _, to := range []netip.Addr{s.h2.Addr4(), s.h2.Addr6()} {
			s.say("%s: h1 → h2 (%v)", w.name, to)
			before, err := s.g2.Admin().Status(s.ctx)
			if err != nil {
				return err
			}
			e := s.fetch(to, w.size, w.count)
			after, err := s.g2.Admin().Status(s.ctx)
			if err != nil {
				return err
			}
			l := line{name: fmt.Sprintf("%s, %s", w.name, family(to)), what: "carried by rdma-shm"}
			l.ok = e.Failed == 0 && after.FlowsTotal[report.CarrierShm] > before.FlowsTotal[report.CarrierShm]
			l.note = fmt.Sprintf("%d bytes in %d requests %s", e.Received, e.OK, e.Error)
			s.report.add(l)
		}
	}
	return nil
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func (s *memoryShow) plainPeer() error {
	for _, w := range s.works() {
		s.say("%s: h1 → h3, which is plain", w.name)
		e := s.fetch(s.h3.Addr4(), w.size, w.count)
		l := line{name: w.name + ", to the plain host", what: "native, reason peer_no_option"}
		reason, err := s.reasonOf(s.h3.Addr4())
		if err != nil {
			return err
		}
		l.ok = e.Failed == 0 && reason == "peer_no_option"
		l.note = fmt.Sprintf("%d bytes, reason %s %s", e.Received, reason, e.Error)
		s.report.add(l)
	}
	return nil
}

// reasonOf is why the last connection to an address stayed native.
func (s *memoryShow) reasonOf(a netip.Addr) (string, error) {
	if err := testnet.Sleep(s.ctx, 300*time.Millisecond); err != nil {
		return "", err
	}
	list, err := s.g1.Admin().Conns(s.ctx, report.ConnQuery{All: true})
	if err != nil {
		return "", err
	}
	for _, c := range list.Conns {
		if c.Remote.Addr() == a {
			return c.Reason, nil
		}
	}
	return "none", nil
}

func (s *memoryShow) death() error {
	s.say("kill h2's gateway in the middle of a download")
	before, err := s.g2.Admin().Status(s.ctx)
	if err != nil {
		return err
	}
	ended := make(chan apps.Event, 1)
	go func() { ended <- s.fetch(s.h2.Addr4(), 1<<40, 1) }()
	if err := s.carrying(before.BytesTotal[report.CarrierShm].Tx + uint64(s.bulk)/2); err != nil {
		return err
	}
	start := time.Now()
	if err := s.g2.Kill(); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	l := line{name: "kill the gateway: the carried download", what: "ends with a reset, promptly"}
	select {
	case e := <-ended:
		l.ok, l.note = e.Failed > 0, fmt.Sprintf("after %d ms: %s", time.Since(start).Milliseconds(), e.Errno)
	case <-time.After(10 * time.Second):
		l.note = "still there after 10 s"
	}
	s.report.add(l)
	e := s.fetch(s.h2.Addr4(), 1000, 1)
	s.report.add(line{
		name: "the next connection", what: "succeeds, native, within 2.1 s",
		ok: e.Failed == 0 && e.Micros < 2_100_000, note: fmt.Sprintf("after %.1f ms %s", float64(e.Micros)/1000, e.Error),
	})
	return nil
}

// carrying waits until h2 has sent that much over RDMA.
func (s *memoryShow) carrying(sent uint64) error {
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	for {
		st, err := s.g2.Admin().Status(ctx)
		if err != nil {
			return err
		}
		if st.Flows[report.CarrierShm] > 0 && st.BytesTotal[report.CarrierShm].Tx > sent {
			return nil
		}
		if err := testnet.Sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("the download is not carried: %w", err)
		}
	}
}

func (s *memoryShow) close() error {
	var errs []error
	for _, g := range []*memhost.Gateway{s.g1, s.g2} {
		if g != nil {
			errs = append(errs, g.Stop())
		}
	}
	for _, srv := range s.servers {
		errs = append(errs, srv.Close())
	}
	if s.net != nil {
		errs = append(errs, s.net.Close())
	}
	return errors.Join(errs...)
}

func (s *memoryShow) say(format string, args ...any) {
	fmt.Fprintf(s.Out, "• "+format+"\n", args...)
}
