package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/rogue"
	"github.com/smcgw/smcgw/negotiate"
)

// hostileWait bounds every wait for what the gateway must do about a rogue.
const hostileWait = 30 * time.Second

// site is a host from which a rogue attacks the gateway of h2 while honest flows go on between h1 and h2.
type site struct {
	*world
	t      *testing.T
	n      *tally
	g1, g2 *gw
	admin  *admin.Client // of g2
	self   rogue.Self
	from   netip.Addr // of the rogue
	port   *uint16    // of the last connection

	dev  map[negotiate.CarrierKind]*rogue.Device
	stop func()
}

// newSite starts both gateways with both carriers, and honest flows over one of them.
func newSite(t *testing.T, n *tally) *site {
	t.Helper()
	w := newServed(t)
	s := &site{world: w, t: t, n: n, from: w.h3.Addr4, port: new(uint16), dev: map[negotiate.CarrierKind]*rogue.Device{}}
	s.g1, s.g2 = w.up(w.h1, settings{}), w.up(w.h2, settings{Carriers: "shm, soft"})
	s.admin = s.g2.client()
	require.NoError(t, w.h3.NFT(rogue.Quiet))
	s.self = rogue.NewSelf([16]byte{})
	s.dev[negotiate.CarrierSoft] = s.soft()
	s.learnHost()
	dev, err := rogue.OpenShm(filepath.Join(w.dir, "shm"), s.self)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	s.dev[negotiate.CarrierSHM] = dev
	s.honest()
	return s
}

// in returns the site for a subtest.
func (s *site) in(t *testing.T) *site {
	at := *s
	at.t = t
	return &at
}

func (s *site) soft() *rogue.Device {
	dev, err := rogue.OpenSoft(s.h3.Do, s.from)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, dev.Close()) })
	return dev
}

// learnHost asks the server which kernel it runs on, so that the rogue can claim the same.
func (s *site) learnHost() {
	c, err := s.dev[negotiate.CarrierSoft].NewCarrier()
	require.NoError(s.t, err)
	defer c.Close()
	w := s.dial(echoPort)
	defer w.Close()
	a, err := w.Propose(w.Proposal(s.self, c.Offer))
	require.NoError(s.t, err)
	require.NotZero(s.t, a.HostID)
	s.self.HostID = a.HostID
}

// dial connects a wire to a port of h2, again if a late gateway accepts no offer.
func (s *site) dial(port uint16) *rogue.Wire {
	s.t.Helper()
	w, err := s.tryDial(port)
	for try := 0; try < lateTries && errors.Is(err, rogue.ErrNative); try++ {
		time.Sleep(250 * time.Millisecond)
		w, err = s.tryDial(port)
	}
	require.NoError(s.t, err)
	return w
}

func (s *site) tryDial(port uint16) (*rogue.Wire, error) {
	*s.port = max(*s.port+1, 30000)
	w, err := rogue.Dial(s.h3.Do, netip.AddrPortFrom(s.from, *s.port), s.h2.AddrPort4(port), hostileWait)
	if w != nil {
		s.t.Cleanup(func() { _ = w.Close() })
	}
	return w, err
}

// attack is a connection of the rogue that h2 carries.
type attack struct {
	*site
	w *rogue.Wire
	c *rogue.Carrier // nil for the relay
}

// begin completes the handshake of a connection; spoil may change the proposal.
func (s *site) begin(by negotiate.CarrierKind, port uint16, spoil func(*negotiate.CarrierOffer)) *attack {
	s.t.Helper()
	kind := by
	if by == negotiate.CarrierRelay {
		kind = negotiate.CarrierSoft // it is offered, but not used
	}
	a := &attack{site: s}
	var err error
	a.c, err = s.dev[kind].NewCarrier()
	require.NoError(s.t, err)
	offer := a.c.Offer
	if spoil != nil {
		spoil(&offer)
	}
	answer := a.propose(port, offer)
	require.NoError(s.t, a.c.Connect(answer))
	require.NoError(s.t, a.w.Confirm(by))
	s.t.Cleanup(func() { _ = a.c.Close() })
	return a
}

// propose gets an ACCEPT. For a while the gateway does not use a carrier with the rogue that connections had to
// leave, unless an operator says so.
func (a *attack) propose(port uint16, offer negotiate.CarrierOffer) negotiate.Accept {
	a.t.Helper()
	for range 20 {
		a.w = a.dial(port)
		answer, err := a.w.Propose(a.w.Proposal(a.self, offer))
		var declined *rogue.DeclineError
		if errors.As(err, &declined) && declined.Reason == negotiate.ReasonCarrierUnreachable {
			require.NoError(a.t, a.w.Close())
			_, err := a.admin.FlushPeers(a.t.Context())
			require.NoError(a.t, err)
			continue
		}
		require.NoError(a.t, err)
		return answer
	}
	require.FailNow(a.t, "never accepted")
	return negotiate.Accept{}
}

// ended waits until the gateway has ended the connection, and returns its report.
func (a *attack) ended() report.ConnInfo {
	a.t.Helper()
	return a.g2.closedConn(func(c report.ConnInfo) bool { return c.Remote == a.w.Local() })
}

// gone waits until the gateway no longer has the connection. By then the honest flows may have pushed its report out
// of the history.
func (a *attack) gone() (why string) {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		live, err := a.admin.Conns(a.t.Context(), report.ConnQuery{})
		return err == nil && !slices.ContainsFunc(live.Conns, func(c report.ConnInfo) bool { return c.Remote == a.w.Local() })
	}, hostileWait, 20*time.Millisecond, "the connection lives on")
	past, err := a.admin.Conns(a.t.Context(), report.ConnQuery{Closed: true})
	require.NoError(a.t, err)
	for _, c := range past.Conns {
		if c.Remote == a.w.Local() {
			return c.Reason
		}
	}
	return "forgotten"
}

// brokeDown is ended for what fails a queue pair rather than the stream on it: the gateway may go on over the relay,
// as with an honest peer. The rogue gives up instead. brokeDown returns why the queue pair was left, or why the
// connection ended.
//
// What a rogue requests on soft is dropped, since it could come from another host with the peer's address. So the
// rogue gets no answer, and leaves its queue pair as an honest peer would.
func (a *attack) brokeDown() (why string) {
	a.t.Helper()
	begun, left := time.Now(), false
	require.Eventually(a.t, func() bool {
		if a.c != nil && a.c.Offer.Kind == negotiate.CarrierSoft && !left && time.Since(begun) > 2*time.Second {
			left = true
			_, _ = a.w.Write(negotiate.AppendHave(negotiate.AppendDemote(nil), 0, 1<<20))
		}
		for _, q := range []report.ConnQuery{{}, {Closed: true}} {
			list, err := a.admin.Conns(a.t.Context(), q)
			if err != nil {
				return false
			}
			for _, c := range list.Conns {
				switch {
				case c.Remote != a.w.Local():
				case c.Demoted != "":
					why = c.Demoted
				case q.Closed:
					why = c.Reason
				}
			}
		}
		return why != ""
	}, hostileWait, 20*time.Millisecond, "the queue pair still carries")
	require.NoError(a.t, a.w.Close())
	a.gone()
	return why
}

// honest makes flows come and go between h1 and h2, checked byte by byte, as long as the test lasts. It leaves processors
// to the rogue, and to other tests.
func (s *site) honest() {
	ctx, cancel := context.WithCancel(s.world.t.Context())
	var all sync.WaitGroup
	to := []netip.AddrPort{s.h2.AddrPort4(transferPort), s.h2.AddrPort6(transferPort)}
	for i, addr := range to {
		all.Go(func() {
			for seed := 1; ctx.Err() == nil; seed++ {
				e, err := s.app(s.h1, 3*hostileWait, "churn", "-count", "40", "-parallel", "4", "-size", "200000",
					"-seed", fmt.Sprint(100*seed+i), "-to", addr.String())
				if s.world.t.Context().Err() != nil {
					return
				}
				s.n.result(e)
				if err != nil && e.Failed == 0 { // it has printed nothing
					s.n.add(0, 0, 1)
				}
				if err != nil || e.Failed > 0 {
					s.world.t.Logf("%s honest flows: %v: %+v", time.Now().Format(time.TimeOnly), err, e)
				}
				time.Sleep(250 * time.Millisecond)
			}
		})
	}
	s.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	s.t.Cleanup(s.stop)
}

// survived ends a test. The honest flows must have seen nothing, the gateway must be the same process, new
// connections must be carried, and what the rogue held must be free again.
func (s *site) survived() {
	s.t.Helper()
	s.stop()
	require.Zero(s.t, s.n.failed(), "errors seen by honest applications")
	s.carriedApp(s.t, s.h1, "ping", "-count", "20", "-size", "5000", "-to", s.h2.AddrPort4(echoPort).String())
	var st report.Status
	require.Eventually(s.t, func() bool {
		st = s.g2.status()
		for _, n := range st.Flows {
			if n > 0 {
				return false
			}
		}
		return st.Memory.UsedBytes == 0
	}, 2*hostileWait, 100*time.Millisecond, "flows or memory left")
	require.NotContains(s.t, s.g2.proc.Output(), "panic")
	require.NotContains(s.t, s.g2.proc.Output(), "daemon stuck")
	require.Zero(s.t, st.FallbacksTotal["internal_error"])
	carried := s.g1.status().FlowsTotal[s.via]
	s.t.Logf("honest flows carried: %d, fallbacks at the server %v", carried, st.FallbacksTotal)
	require.Positive(s.t, carried)
}

// oneOf checks the reason with which an attack ended.
func oneOf(t *testing.T, reason string, reasons ...string) {
	t.Helper()
	require.True(t, slices.Contains(reasons, reason), "%q is not among %q", reason, reasons)
}
