package beyond

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

const (
	dialTime = 2 * time.Second
	// maxTalks bounds the control connections that peers have opened, maxTalksOf those from one address.
	maxTalks   = 1024
	maxTalksOf = 16
	// maxWishes bounds the offers of all peers for which no end has asked, maxWishesOf those of one peer.
	maxWishes   = 16384
	maxWishesOf = maxWishes / 4
	// linesAtOnce is the burst of log lines about connections that go back; after it, one line a second.
	linesAtOnce = 10
	// acceptPause is the delay after a failed accept, as for want of descriptors or memory.
	acceptPause = 50 * time.Millisecond
	// metAgain is how long a peer is left alone that has had a gateway, or that this host could not ask.
	metAgain = time.Second
	// largeRings, fairOrder and ringShare determine the sizes of rings.
	largeRings = 32
	fairOrder  = 18
	ringShare  = 64
	// closeTime bounds the last write to a peer when a control connection ends.
	closeTime = time.Second
)

// Config configures a service.
type Config struct {
	// GatewayID identifies this gateway, and HostID its kernel.
	GatewayID, HostID [16]byte
	// Port is the TCP port of control connections, here and at peers.
	Port uint16
	// Only is the only local address for control connections; zero: all of the host.
	Only netip.Addr
	// Priority is the SO_PRIORITY by which the steering recognizes the gateway's own sockets; 0: none is set.
	Priority int
	// Keys returns the current keys shared with peers.
	Keys func() negotiate.Keys
	// Shards run the ends. Providers are the devices, most preferred first.
	Shards    []*loop.Shard
	Providers []carrier.Provider
	// Pays reports whether a carrier may carry an end, by the rule that selects the end.
	Pays func(of *broker.Half, by negotiate.CarrierKind) bool
	// Peers knows which carriers rest, for each peer.
	Peers *peers.Table
	// MaxConns bounds the connections between hosts.
	MaxConns int
	// Memory is for their rings, in bytes: the more it is used, the smaller rings become.
	Memory int64
	// NativeFor is how long a peer without a gateway is not asked again.
	NativeFor time.Duration
	Log       *slog.Logger
}

// Service is the [broker.Beyond] of a gateway. Its methods are safe for concurrent use.
type Service struct {
	cfg    Config
	hubs   []*mirror.Hub
	next   atomic.Uint32 // counts ends, to pick their hubs in turn
	listen []net.Listener
	ctx    context.Context //nolint:containedctx // of the service's own I/O
	cancel context.CancelFunc
	work   sync.WaitGroup
	rings  atomic.Int64  // bytes that they could hold
	lines  *rate.Limiter // of log lines about connections that go back

	mu     sync.Mutex           // guards everything below
	talks  map[netip.Addr]*talk // that this gateway has opened, by peer
	taken  map[*talk]struct{}   // that peers have opened
	ending map[*talk]struct{}   // that are over, but have ends which go on by the kernel
	native map[netip.Addr]absence
	met    map[netip.Addr]struct{} // peers that have sent HELLO
	known  map[*broker.Half]*end
	asked  map[broker.Sequences]*end // ends of servers that wait for an offer
	wished map[broker.Sequences]wish // offers that wait for an end
	wishes map[netip.Addr]int        // how many of them each peer has
	desks  map[uint64]*desk
	conns  int
	users  map[uint32]int // how many of conns each user has
	closed bool
}

// errOwn means that the address is one of this host.
var errOwn = errors.New("an address of this host")

// wish is an OFFER whose end has not asked yet.
type wish struct {
	talk   *talk
	number uint64
}

// absence is until when a peer is not asked again, and the reason of a gateway that does not greet; ReasonNone: there is
// none, or, if not asked, this host lacked what it takes to ask.
type absence struct {
	until time.Time
	why   between.Closed
	asked bool
}

// desk is the desk of a process, shared by its ends.
type desk struct {
	*mirror.Desk
	uses int
}

var _ broker.Beyond = (*Service)(nil)

// Open starts a service. The shards must be running.
func Open(cfg Config) (*Service, error) {
	s := &Service{
		cfg: cfg, lines: rate.NewLimiter(1, linesAtOnce), talks: map[netip.Addr]*talk{}, taken: map[*talk]struct{}{}, ending: map[*talk]struct{}{}, native: map[netip.Addr]absence{}, met: map[netip.Addr]struct{}{},
		known: map[*broker.Half]*end{}, asked: map[broker.Sequences]*end{}, wished: map[broker.Sequences]wish{}, wishes: map[netip.Addr]int{}, desks: map[uint64]*desk{}, users: map[uint32]int{},
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

// mark marks a socket as the gateway's own.
func (s *Service) mark(_, _ string, c syscall.RawConn) error {
	var err error
	if s.cfg.Priority == 0 {
		return nil
	}
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, s.cfg.Priority)
	}), err)
}

// Close ends the service: peers are told why, and libraries go on by the kernel. The broker must have stopped using the
// service, except for ends that it already has. Close returns once no shard has an end of it.
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
	for _, some := range []map[*talk]struct{}{s.taken, s.ending} {
		talks = slices.AppendSeq(talks, maps.Keys(some))
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
		t.post(func(time.Time) { t.end(why) })
	}
	s.cancel()
	s.work.Wait()
	for _, h := range s.hubs {
		h.Stop()
	}
}

// LeaveDevice takes all ends off a device that is given up; see [mirror.End.LeaveDevice].
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

// accept accepts control connections from peers.
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
			defer s.mu.Unlock()
			s.forgetTalk(t)
		}()
	}
}

// over makes room for another control connection with a talk's peer, as this one serves no new ends. It may have old ones
// for long: those that go on by the kernel.
func (s *Service) over(t *talk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetTalk(t)
	s.ending[t] = struct{}{}
}

// forgetTalk forgets a talk that serves no new ends, or runs no more. The caller holds the lock.
func (s *Service) forgetTalk(t *talk) {
	if s.talks[t.peer] == t {
		delete(s.talks, t.peer)
	}
	delete(s.taken, t)
	delete(s.ending, t)
}

// takenFrom counts the control connections that one address has opened. The caller holds the lock.
func (s *Service) takenFrom(peer netip.Addr) (n int) {
	for t := range s.taken {
		if t.peer == peer {
			n++
		}
	}
	return n
}

func peerOf(c net.Conn) netip.Addr {
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() //nolint:forcetypeassert // TCP
}

// Waits implements broker.Beyond.
func (s *Service) Waits(h *broker.Half) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	e := newEnd(s, h)
	if s.full(h.Process.UID) {
		s.work.Go(func() { e.blame(negotiate.ReasonFlowLimit, false) }) // without the broker's lock
		return
	}
	switch h.Socket.Role {
	case broker.RoleClient:
		if !slices.ContainsFunc(s.cfg.Providers, func(p carrier.Provider) bool { return s.cfg.Pays(h, p.Kind()) }) {
			return
		}
		s.known[h] = e
		s.work.Go(func() { // asks the kernel, which may block
			e.hosts = hostsBehind(h.Socket.Local, h.Socket.Remote)
			s.seek(e, e.hosts)
		})
	case broker.RoleServer:
		name := mirrored(h.Socket.Sequences)
		s.known[h] = e
		if w, ok := s.wished[name]; ok {
			s.unwish(name)
			e.talk = w.talk
			if !w.talk.post(func(now time.Time) { w.talk.found(now, w.number, e) }) {
				delete(s.known, h)
			}
			return
		}
		s.asked[name] = e
	}
}

// full reports whether a user may have no more connections: one has three quarters of them at most, whatever it does.
// The caller holds the lock.
func (s *Service) full(uid uint32) bool {
	return s.conns >= s.cfg.MaxConns || s.users[uid] >= (s.cfg.MaxConns+1)*3/4
}

// enters counts a connection of a user, unless there are too many. Undo it with leaves.
func (s *Service) enters(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full(uid) {
		return false
	}
	s.conns++
	s.users[uid]++
	return true
}

func (s *Service) leaves(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns--
	if s.users[uid]--; s.users[uid] == 0 {
		delete(s.users, uid)
	}
}

// seek offers a client's end to the first of the remaining hosts that has a gateway. If none has, the end stays native,
// unless one of its hosts may soon have one: then seek tries all hosts again after metAgain.
func (s *Service) seek(e *end, left []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[e.half] != e { // it no longer waits
		return
	}
	for ; !s.closed && len(left) > 0; left = left[1:] {
		t := s.talkTo(left[0])
		if t == nil {
			if a := s.native[left[0]]; a.why.Reason != negotiate.ReasonNone {
				s.work.Go(func() { e.blame(a.why.Reason, a.why.Remote) }) // without the lock: the broker takes its own first
			}
			continue
		}
		e.talk, e.left = t, left[1:]
		if t.post(func(now time.Time) { t.begin(now, e) }) { // false: the talk has just ended
			return
		}
	}
	if s.closed || !slices.ContainsFunc(e.hosts, s.soon) {
		delete(s.known, e.half)
		return
	}
	e.talk = nil
	time.AfterFunc(metAgain, func() { s.seek(e, e.hosts) })
}

// soon reports whether a peer without a gateway has had one, or was not asked. The caller holds the lock.
func (s *Service) soon(peer netip.Addr) bool {
	_, met := s.met[peer]
	a, absent := s.native[peer]
	return met || absent && !a.asked
}

// mirrored converts a server's name of a connection to the client's, in which the numbers are swapped.
func mirrored(q broker.Sequences) broker.Sequences {
	return broker.Sequences{Mine: q.Peer, Peer: q.Mine}
}

// find connects an OFFER with the end that it names, now or once that asks. It returns false if the name is already
// wanted, or if too many offers wait.
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
	if ok || len(s.wished) >= maxWishes || s.wishes[t.peer] >= maxWishesOf { // the first offer of a name keeps it
		return false
	}
	s.wished[name] = wish{t, number}
	s.wishes[t.peer]++
	return true
}

// unwish forgets an offer that waits. The caller holds the lock.
func (s *Service) unwish(name broker.Sequences) {
	peer := s.wished[name].talk.peer
	delete(s.wished, name)
	if s.wishes[peer]--; s.wishes[peer] == 0 {
		delete(s.wishes, peer)
	}
}

// forget undoes find for an offer that still waits.
func (s *Service) forget(t *talk, number uint64, name broker.Sequences) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wished[name] == (wish{t, number}) {
		s.unwish(name)
	}
}

// Over implements broker.Beyond.
func (s *Service) Over(h *broker.Half) { s.tell(h, (*talk).gone) }

// Socket implements broker.Beyond.
func (s *Service) Socket(h *broker.Half, fd int) {
	if !s.tell(h, func(_ *talk, _ time.Time, e *end) { e.rings(fd) }) {
		shared.CloseSocket(&fd)
	}
}

// Ended implements broker.Beyond.
func (s *Service) Ended(h *broker.Half, closed bool) {
	s.tell(h, func(t *talk, now time.Time, e *end) { t.ended(now, e, closed) })
}

// Alone implements broker.Beyond.
func (s *Service) Alone(h *broker.Half) { s.tell(h, (*talk).alone) }

// tell posts a job about an end to its talk. It returns false if the end has none; it then forgets the end.
func (s *Service) tell(h *broker.Half, what func(*talk, time.Time, *end)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.known[h]
	if e == nil {
		return false
	}
	t := e.talk
	if t == nil { // a server's that waits for an offer, or a client's about to begin
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

// dropped forgets an end that has ended.
func (s *Service) dropped(e *end) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, e.half)
}

// talkTo returns the talk with the gateway at an address, opening it if necessary; nil if the peer is known to have no
// gateway, or cannot be one. The caller holds the lock.
func (s *Service) talkTo(peer netip.Addr) *talk {
	if t := s.talks[peer]; t != nil {
		return t
	}
	now := time.Now()
	if now.Before(s.native[peer].until) || peer.IsLoopback() || peer.IsUnspecified() || len(s.talks) >= maxTalks {
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

// leaveNative forgets a talk that this gateway has opened. If there was no gateway (err), it also remembers not to ask
// the peer for a while.
func (s *Service) leaveNative(t *talk, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetTalk(t)
	if err == nil {
		return
	}
	s.cfg.Log.Debug("no gateway to promote with", "peer", t.peer, "error", err)
	if len(s.native) >= maxTalks { // forgetting costs only a dial each
		clear(s.native)
	}
	asked := carrier.Shortage(err) == negotiate.ReasonNone
	after := s.cfg.NativeFor
	if _, met := s.met[t.peer]; met || !asked {
		after = min(after, metAgain)
	}
	s.native[t.peer] = absence{time.Now().Add(after), t.refusal, asked}
}

// meet records that a peer has a gateway. If it does not answer later, it may soon be back.
func (s *Service) meet(peer netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.met) >= maxTalks {
		clear(s.met)
	}
	s.met[peer] = struct{}{}
	delete(s.native, peer)
}

// hub returns the hub for the next end, in turn.
func (s *Service) hub() *mirror.Hub { return s.hubs[int(s.next.Add(1))%len(s.hubs)] }

// deskOf returns the desk of an end's process, mapping it if necessary. Release it with deskGoes.
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
	fd, err := h.Desk() // without the lock: the broker takes its own
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

// deskGoes releases one use of a desk.
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
