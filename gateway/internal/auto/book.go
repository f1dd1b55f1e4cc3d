package auto

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// Steering is the part of the datapath that counts services and is told what they
// are worth.
type Steering interface {
	Services() ([]ebpf.Service, error)
	SetService(s ebpf.Service) error
	FlushServices() (int, error)
	// SetNear tells that the host of an address is under this kernel, for ttl.
	SetNear(addr netip.Addr, ttl time.Duration) error
}

// Conn is a connection that is learned from. Its methods are called with the book's
// lock held.
type Conn interface {
	// Service is the server's address and port.
	Service() netip.AddrPort
	// Start is when the connection began.
	Start() time.Time
	// Moved counts the bytes of both directions, and the reads and writes of the local
	// application's socket.
	Moved() (bytes, moves uint64)
	// Seen is where the book keeps how far it has looked at the connection.
	Seen() *Seen
}

// Book gives the learner what it learns from, and the steering what was learned. A
// nil one learns nothing: no rule has action auto.
type Book struct {
	steer   Steering
	log     *slog.Logger
	mu      sync.Mutex // guards everything below, and Seen of every connection
	learner *learner
}

// Seen is how far a connection has been looked at. Its book guards it.
type Seen struct {
	begun, settled bool
	sample         bool // it is carried to learn from
	bytes, moves   uint64
	at             time.Time
}

// NewBook returns a book that forgets a verdict after ttl; paces says that the host's
// congestion control does.
func NewBook(steer Steering, ttl time.Duration, paces bool, log *slog.Logger) *Book {
	b := &Book{steer: steer, log: log, learner: newLearner(ttl)}
	b.learner.paces = paces
	return b
}

// Look learns from what a connection, which carrier carries, did since the last look;
// ended says that it is the last one.
func (b *Book) Look(c Conn, carrier config.Carrier, ended bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, tells := c.Seen().evidence(c, ended, now)
	if !tells {
		return
	}
	e.carrier = carrier
	if e.begun {
		c.Seen().sample = !b.learner.carries(c.Service())
	}
	e.sample = c.Seen().sample
	b.tellLocked(b.learner.learn(c.Service(), e, now))
}

// tellLocked tells the steering what was decided, if anything was.
func (b *Book) tellLocked(do ebpf.Service, tell bool) {
	if !tell {
		return
	}
	at := netip.AddrPortFrom(do.Addr, do.Port)
	b.log.Debug("auto", "service", at, "state", do.State, "ttl", do.TTL)
	if err := b.steer.SetService(do); err != nil {
		b.log.Warn("tell what a service is worth", "service", at, "error", err)
	}
}

// evidence moves s forward and returns the difference, unless there is none but time.
func (s *Seen) evidence(c Conn, ended bool, now time.Time) (e evidence, tells bool) {
	bytes, moves := c.Moved()
	e = evidence{bytes: bytes - s.bytes, moves: moves - s.moves, begun: !s.begun}
	if s.at.IsZero() {
		s.at = c.Start()
	}
	e.seconds = now.Sub(s.at).Seconds()
	e.settled = !s.settled && (ended || now.Sub(c.Start()) >= autoSettle)
	if !ended && !e.begun && !e.settled && e.bytes == 0 && e.moves == 0 {
		return e, false
	}
	s.begun, s.settled = true, s.settled || e.settled
	s.bytes, s.moves, s.at = bytes, moves, now
	if ended {
		e.whole = rate{conns: 1, bytes: bytes, seconds: now.Sub(c.Start()).Seconds()}
	}
	return e, true
}

// Compare looks at native connections. Shards wait for mu when a flow ends, so it is not
// held while the table is read.
func (b *Book) Compare(now time.Time) {
	list, err := b.steer.Services()
	if err != nil {
		b.log.Warn("read services", "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		if list[i].Ended > 0 {
			b.tellLocked(b.learner.learnNative(netip.AddrPortFrom(list[i].Addr, list[i].Port), list[i], now))
		}
	}
}

// Flush forgets all services, here and in the steering.
func (b *Book) Flush() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.learner.services)
	clear(b.learner.peers)
	_, err := b.steer.FlushServices()
	return err
}

// List joins what the steering knows with what was learned.
func (b *Book) List(now time.Time) []admin.ServiceInfo {
	if b == nil {
		return nil
	}
	steered, err := b.steer.Services()
	if err != nil {
		b.log.Warn("read services", "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	infos := make(map[netip.AddrPort]admin.ServiceInfo)
	for at, s := range b.learner.services {
		infos[at] = s.info(at, now)
	}
	for i := range steered {
		at := netip.AddrPortFrom(steered[i].Addr, steered[i].Port)
		info, learned := infos[at]
		if !learned {
			info = (&service{}).info(at, now)
		}
		addSteered(&info, &steered[i])
		infos[at] = info
	}
	out := make([]admin.ServiceInfo, 0, len(infos))
	for at := range infos {
		out = append(out, infos[at])
	}
	slices.SortFunc(out, func(a, b admin.ServiceInfo) int {
		return netip.AddrPortFrom(a.Address, a.Port).Compare(netip.AddrPortFrom(b.Address, b.Port))
	})
	return out
}

// info describes what was learned.
func (s *service) info(at netip.AddrPort, now time.Time) admin.ServiceInfo {
	seen := &s.last
	if s.state != ebpf.ServiceCarry && s.state != ebpf.ServiceNative {
		seen = &s.now
	}
	info := admin.ServiceInfo{
		Address: at.Addr(), Port: at.Port(), Verdict: verdictOf(s.state), Connections: seen.conns, Bytes: seen.bytes, Moves: seen.moves,
		BytesPerConnection: quotient(seen.bytes, seen.conns), BytesPerMove: quotient(seen.bytes, seen.moves), Score: seen.score(),
		Why: seen.why(),
	}
	if seen.conns == 0 && seen.bytes == 0 {
		info.Why = s.foreseen()
	}
	if carried, native := &s.compared[0], &s.compared[1]; native.conns > 0 {
		info.Compared = &admin.ServiceRates{
			CarriedConnections: carried.conns, CarriedBytesPerSecond: carried.perSecond(),
			NativeConnections: native.conns, NativeBytesPerSecond: native.perSecond(),
		}
		info.Why += fmt.Sprintf("; bulk carried at %s/s, native at %s/s", config.Bytes(carried.perSecond()).Rounded(), config.Bytes(native.perSecond()).Rounded())
	}
	if seen.seconds > 0 {
		info.BytesPerSecond = float64(seen.bytes) / seen.seconds
	}
	if s.state == ebpf.ServiceNative {
		info.Reason = negotiate.ReasonNotWorthIt.String()
		info.ExpiresSeconds = max(0, s.until.Sub(now).Seconds())
	}
	return info
}

// addSteered adds what the programs know; what they do counts.
func addSteered(i *admin.ServiceInfo, s *ebpf.Service) {
	i.Native = s.Passed
	switch s.State {
	case ebpf.ServiceSampling:
		i.Verdict, i.Reason, i.SamplesLeft, i.ExpiresSeconds = admin.VerdictSampling, "", s.Tokens, s.TTL.Seconds()
	case ebpf.ServiceNative:
		i.Verdict, i.Reason, i.ExpiresSeconds = admin.VerdictNative, negotiate.ReasonNotWorthIt.String(), s.TTL.Seconds()
		if s.Unpaced {
			i.Reason = negotiate.ReasonSameKernel.String()
		}
	default:
		i.Verdict, i.Reason, i.ExpiresSeconds = verdictOf(s.State), "", 0
	}
}

func verdictOf(s ebpf.ServiceState) admin.ServiceVerdict {
	switch s {
	case ebpf.ServiceCarry:
		return admin.VerdictCarry
	case ebpf.ServiceNative:
		return admin.VerdictNative
	default:
		return admin.VerdictSampling
	}
}

// foreseen says what native connections tell of a service of which none was carried.
func (s *service) foreseen() string {
	switch looked, saw := &s.looked, &s.saw; {
	case s.state == ebpf.ServiceNative && saw.conns > 0:
		return fmt.Sprintf("%s in %d native connections; carrying them cannot pay", config.Bytes(saw.bytes).Rounded(), saw.conns)
	case looked.conns > 0:
		return fmt.Sprintf("nothing carried yet; %s in %d native connections of %v", config.Bytes(looked.bytes).Rounded(), looked.conns,
			time.Duration(looked.mean()*float64(time.Second)).Round(time.Millisecond))
	default:
		return "nothing carried yet"
	}
}

// why says in words what the numbers mean.
func (s *sums) why() string {
	need := config.Bytes(s.price)
	return fmt.Sprintf("%s in %d moves of %d connections; carrying pays from %s on",
		config.Bytes(s.bytes).Rounded(), s.moves, s.conns, need.Rounded())
}
