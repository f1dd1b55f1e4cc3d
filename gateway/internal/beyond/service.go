package beyond

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/mirror"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// ringOrder is the size of the rings: what a stream over the fastest carrier has under way.
const ringOrder = 21

const (
	dialTime = 2 * time.Second
	// maxTalks bounds the control connections that others have opened, maxTalksOf those from one address.
	maxTalks   = 1024
	maxTalksOf = 16
	// maxWishes bounds the offers of all peers for which no end has asked.
	maxWishes = 16384
	// linesAtOnce are written about connections that go back, and one a second after that.
	linesAtOnce = 10
	// acceptPause is between attempts to accept that fail for want of descriptors or memory.
	acceptPause = 50 * time.Millisecond
	// metAgain is after how long a peer is asked again that had a gateway.
	metAgain = time.Second
	// closeTime is how long the end of the service waits for peers to be told.
	closeTime = time.Second
)

// Config is what a service is made from.
type Config struct {
	// GatewayID names this gateway, and HostID its kernel.
	GatewayID, HostID [16]byte
	// Port is the TCP port of control connections, here and at peers.
	Port uint16
	// Only is the only address that control connections are made from and to; zero: all of the host.
	Only netip.Addr
	// Priority is the SO_PRIORITY by which the steering knows the gateway's own sockets.
	Priority int
	// Keys are those that peers share, of the moment.
	Keys func() negotiate.Keys
	// Shards run the ends, Providers are the devices in the order of preference.
	Shards    []*loop.Shard
	Providers []carrier.Provider
	// Pays reports whether a carrier may carry for an end, by the rule that selects it.
	Pays func(of *broker.Half, by negotiate.CarrierKind) bool
	// Peers knows which carriers rest, by peer.
	Peers *peers.Table
	// MaxConns bounds the connections.
	MaxConns int
	// NativeFor is for how long a peer without a gateway is not asked again.
	NativeFor time.Duration
	Log       *slog.Logger
}

// Service is the [broker.Beyond] of a gateway. Its methods may be called by any goroutine.
type Service struct {
	cfg    Config
	hubs   []*mirror.Hub
	next   atomic.Uint32 // hub
	listen []net.Listener
	ctx    context.Context //nolint:containedctx // of what the service does by itself
	cancel context.CancelFunc
	work   sync.WaitGroup
	conns  atomic.Int64
	lines  *rate.Limiter // of the log, about connections that go back

	mu     sync.Mutex           // guards everything below
	talks  map[netip.Addr]*talk // that this gateway has opened, by peer
	taken  map[*talk]struct{}   // that peers have
	native map[netip.Addr]time.Time
	met    map[netip.Addr]struct{} // peers that have greeted
	known  map[*broker.Half]*end
	asked  map[broker.Sequences]*end // of servers, without an offer
	wished map[broker.Sequences]wish // offers, without an end
	desks  map[uint64]*desk
	closed bool
}

// errOwn is an address of this host.
var errOwn = errors.New("an address of this host")

// wish is an OFFER for which no end has asked.
type wish struct {
	talk   *talk
	number uint64
}

// desk is that of a process, as long as an end of it has it.
type desk struct {
	*mirror.Desk
	uses int
}

var _ broker.Beyond = (*Service)(nil)

// Open starts a service, whose shards run.
func Open(cfg Config) (*Service, error) {
	s := &Service{
		cfg: cfg, lines: rate.NewLimiter(1, linesAtOnce), talks: map[netip.Addr]*talk{}, taken: map[*talk]struct{}{}, native: map[netip.Addr]time.Time{}, met: map[netip.Addr]struct{}{},
		known: map[*broker.Half]*end{}, asked: map[broker.Sequences]*end{}, wished: map[broker.Sequences]wish{}, desks: map[uint64]*desk{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	lc := net.ListenConfig{Control: s.mark}
	all := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if cfg.Only.IsValid() {
		all = []netip.Addr{cfg.Only}
	}
	for _, addr := range all {
		l, err := lc.Listen(s.ctx, networkOf(addr), netip.AddrPortFrom(addr, cfg.Port).String())
		if addr.Is6() && errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			s.Close(negotiate.ReasonNone)
			return nil, fmt.Errorf("control connections: %w", err)
		}
		s.listen = append(s.listen, l)
	}
	for _, sh := range cfg.Shards {
		s.hubs = append(s.hubs, mirror.NewHub(sh))
	}
	for _, l := range s.listen {
		s.work.Go(func() { s.accept(l) })
	}
	return s, nil
}

func networkOf(a netip.Addr) string {
	if a.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// mark makes a socket one of the gateway's own.
func (s *Service) mark(_, _ string, c syscall.RawConn) error {
	var err error
	if s.cfg.Priority == 0 {
		return nil
	}
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, s.cfg.Priority)
	}), err)
}

// Close ends the service: peers are told why, and libraries go on by the kernel. The broker must not call it any more, or only
// about what it has. It returns when the shards have no end of it.
func (s *Service) Close(why negotiate.Reason) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	var talks []*talk
	for _, t := range s.talks {
		talks = append(talks, t)
	}
	for t := range s.taken {
		talks = append(talks, t)
	}
	asked := s.asked
	s.asked = map[broker.Sequences]*end{}
	s.mu.Unlock()
	for _, e := range asked {
		e.drop()
	}
	for _, l := range s.listen {
		_ = l.Close()
	}
	for _, t := range talks {
		t.post(func(now time.Time) { t.end(now, why) })
	}
	s.cancel()
	s.work.Wait()
	for _, h := range s.hubs {
		h.Stop()
	}
}

// LeaveDevice has all ends leave a device that is given up.
func (s *Service) LeaveDevice(kind negotiate.CarrierKind, uses func(*carrier.Link) bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.known {
		if m := e.mir.Load(); m != nil {
			m.LeaveDevice(kind, uses)
		}
	}
}

// accept takes in control connections of peers.
func (s *Service) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-time.After(acceptPause):
				continue
			case <-s.ctx.Done():
				return
			}
		}
		t := s.newTalk(peerOf(c))
		s.mu.Lock()
		full := s.closed || len(s.taken) >= maxTalks || s.takenFrom(t.peer) >= maxTalksOf
		if !full {
			s.taken[t] = struct{}{}
			s.work.Add(1)
		}
		s.mu.Unlock()
		if full {
			_ = c.Close()
			continue
		}
		go func() {
			defer s.work.Done()
			t.run(c, false)
			s.mu.Lock()
			delete(s.taken, t)
			s.mu.Unlock()
		}()
	}
}

// takenFrom counts what one address has opened. The caller holds the lock.
func (s *Service) takenFrom(peer netip.Addr) (n int) {
	for t := range s.taken {
		if t.peer == peer {
			n++
		}
	}
	return n
}

func peerOf(c net.Conn) netip.Addr {
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() //nolint:forcetypeassert // of TCP
}

// Waits implements broker.Beyond.
func (s *Service) Waits(h *broker.Half) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || int(s.conns.Load()) >= s.cfg.MaxConns {
		return
	}
	e := newEnd(s, h)
	switch h.Socket.Role {
	case broker.RoleClient:
		if !slices.ContainsFunc(s.cfg.Providers, func(p carrier.Provider) bool { return s.cfg.Pays(h, p.Kind()) }) {
			return
		}
		s.known[h] = e
		s.work.Go(func() { // the kernel is asked
			e.hosts = hostsBehind(h.Socket.Local, h.Socket.Remote)
			s.seek(e, e.hosts)
		})
	case broker.RoleServer:
		name := mirrored(h.Socket.Sequences)
		s.known[h] = e
		if w, ok := s.wished[name]; ok {
			delete(s.wished, name)
			e.talk = w.talk
			if !w.talk.post(func(now time.Time) { w.talk.found(now, w.number, e) }) {
				delete(s.known, h)
			}
			return
		}
		s.asked[name] = e
	}
}

// seek has a client's end begin at the next host of those left that may have the other end, and have a gateway. If there is none
// it is not promoted, unless one of them had a gateway: then that may be back soon.
func (s *Service) seek(e *end, left []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[e.half] != e { // it does not wait any more
		return
	}
	for ; !s.closed && len(left) > 0; left = left[1:] {
		t := s.talkTo(left[0])
		if t == nil {
			continue
		}
		e.talk, e.left = t, left[1:]
		if t.post(func(now time.Time) { t.begin(now, e) }) { // or it has just ended
			return
		}
	}
	if s.closed || !slices.ContainsFunc(e.hosts, func(a netip.Addr) bool { _, ok := s.met[a]; return ok }) {
		delete(s.known, e.half)
		return
	}
	e.talk = nil
	time.AfterFunc(metAgain, func() { s.seek(e, e.hosts) })
}

// mirrored names a connection as its client does, which has them the other way round.
func mirrored(q broker.Sequences) broker.Sequences {
	return broker.Sequences{Mine: q.Peer, Peer: q.Mine}
}

// find has the end that a peer wants answer, now or when it asks; false: too many are waited for.
func (s *Service) find(t *talk, number uint64, name broker.Sequences) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.asked[name]; e != nil {
		delete(s.asked, name)
		e.talk = t
		t.post(func(now time.Time) { t.found(now, number, e) })
		return true
	}
	_, ok := s.wished[name]
	if ok || len(s.wished) >= maxWishes { // the first one's it is
		return false
	}
	s.wished[name] = wish{t, number}
	return true
}

// forget takes back what find has noted.
func (s *Service) forget(t *talk, number uint64, name broker.Sequences) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wished[name] == (wish{t, number}) {
		delete(s.wished, name)
	}
}

// Over implements broker.Beyond.
func (s *Service) Over(h *broker.Half) { s.tell(h, (*talk).gone) }

// Socket implements broker.Beyond.
func (s *Service) Socket(h *broker.Half, fd int) {
	if !s.tell(h, func(_ *talk, _ time.Time, e *end) { e.rings(fd) }) {
		_ = unix.Close(fd)
	}
}

// Ended implements broker.Beyond.
func (s *Service) Ended(h *broker.Half, closed bool) {
	s.tell(h, func(t *talk, now time.Time, e *end) { t.ended(now, e, closed) })
}

// Alone implements broker.Beyond.
func (s *Service) Alone(h *broker.Half) { s.tell(h, (*talk).alone) }

// tell leaves a job about an end for its talk, if it has one.
func (s *Service) tell(h *broker.Half, what func(*talk, time.Time, *end)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.known[h]
	if e == nil {
		return false
	}
	t := e.talk
	if t == nil { // a server's end that waits for its offer, or a client's that is about to begin
		delete(s.known, h)
		if name := mirrored(h.Socket.Sequences); s.asked[name] == e {
			delete(s.asked, name)
		}
		return false
	}
	if !t.post(func(now time.Time) { what(t, now, e) }) {
		delete(s.known, h)
		return false
	}
	return true
}

// dropped is when an end is no more.
func (s *Service) dropped(e *end) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, e.half)
}

// talkTo is the talk with the gateway at an address, which is opened if there is none; nil: there is no gateway. The caller
// holds the lock.
func (s *Service) talkTo(peer netip.Addr) *talk {
	if t := s.talks[peer]; t != nil {
		return t
	}
	now := time.Now()
	if now.Before(s.native[peer]) || peer.IsLoopback() || peer.IsUnspecified() || len(s.talks) >= maxTalks {
		return nil
	}
	delete(s.native, peer)
	t := s.newTalk(peer)
	s.talks[peer] = t
	s.work.Go(func() {
		c, err := s.dial(peer)
		if err == nil && addrOf(c.LocalAddr()).Addr() == addrOf(c.RemoteAddr()).Addr() {
			err = errors.Join(errOwn, c.Close())
		}
		if err != nil {
			s.leaveNative(t, err)
			t.refuse()
			return
		}
		t.run(c, true)
		s.leaveNative(t, t.err())
	})
	return t
}

func (s *Service) dial(peer netip.Addr) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime, Control: s.mark}
	if s.cfg.Only.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.cfg.Only, 0))
	}
	return d.DialContext(s.ctx, "tcp", netip.AddrPortFrom(peer, s.cfg.Port).String())
}

// leaveNative forgets a talk that this gateway has opened, and for a while the peer if it has no gateway.
func (s *Service) leaveNative(t *talk, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.talks[t.peer] == t {
		delete(s.talks, t.peer)
	}
	if err == nil {
		return
	}
	s.cfg.Log.Debug("no gateway to promote with", "peer", t.peer, "error", err)
	if len(s.native) >= maxTalks { // of any: it costs a dial
		clear(s.native)
	}
	after := s.cfg.NativeFor
	if _, ok := s.met[t.peer]; ok {
		after = min(after, metAgain)
	}
	s.native[t.peer] = time.Now().Add(after)
}

// meet notes that a peer has a gateway: one that does not answer now may be back soon.
func (s *Service) meet(peer netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.met) >= maxTalks {
		clear(s.met)
	}
	s.met[peer] = struct{}{}
	delete(s.native, peer)
}

// hub is the one for the next end.
func (s *Service) hub() *mirror.Hub { return s.hubs[int(s.next.Add(1))%len(s.hubs)] }

// deskOf is the desk of the process of an end.
func (s *Service) deskOf(h *broker.Half) (*desk, error) {
	s.mu.Lock()
	d := s.desks[h.Member]
	if d != nil {
		d.uses++
	}
	s.mu.Unlock()
	if d != nil {
		return d, nil
	}
	fd, err := h.Desk() // without the lock: the broker has its own
	if err != nil {
		return nil, err
	}
	made, err := mirror.OpenDesk(fd)
	_ = unix.Close(fd)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d = s.desks[h.Member]; d != nil { // another talk was faster
		d.uses++
		_ = made.Close()
		return d, nil
	}
	d = &desk{made, 1}
	s.desks[h.Member] = d
	return d, nil
}

// deskGoes ends one use of a desk.
func (s *Service) deskGoes(member uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.desks[member]; d != nil {
		if d.uses--; d.uses == 0 {
			delete(s.desks, member)
			_ = d.Close()
		}
	}
}
