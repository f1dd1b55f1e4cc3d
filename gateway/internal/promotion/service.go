package promotion

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/ebpf/witness"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/inprocess/scan"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// listenEvery is how often to retry a socket that another gateway has, or that cannot be made.
	listenEvery = 2 * time.Second
	// socketMode lets every user ask; the kernel tells the broker who asks.
	socketMode = 0o666
	// dirMode lets every user reach the socket.
	dirMode = 0o755
)

// Options are what a service needs in addition to the configuration.
type Options struct {
	Log *slog.Logger
	// Cgroup is where cgroup2 is mounted. Recognizing connections across network namespaces needs it.
	Cgroup string
}

// Service serves programs while it is told to. The methods of a nil Service do nothing, unless they say otherwise.
type Service struct {
	log     *slog.Logger
	config  config.InProcess
	program *witness.Sequences // nil: connections are named by their addresses only
	paths   *shapers           // nil: paths are not examined
	seen    forecast

	mu     sync.Mutex // guards everything below
	live   config.Config
	mode   report.Mode
	share  ebpf.Share
	trials []*config.Trial
	now    *broker.Broker // nil: none serves
	end    func()         // stops what serves; nil: nothing serves
	past   broker.Totals  // of earlier brokers
	failed error          // why the last attempt to serve failed
	closed bool
	beyond broker.Beyond // nil: this host only

	told telling
}

// New makes a service that does not serve yet, in the network namespace of the calling thread. It returns nil if the
// configuration disables it.
func New(c config.Config, o Options) *Service {
	if c.InProcess.Enabled != config.SwitchOn {
		return nil
	}
	s := &Service{log: o.Log, config: c.InProcess, live: c, mode: report.ModeOff, share: ebpf.ShareAll}
	s.told.past = newPast(nil)
	var err error
	if s.program, err = witness.LoadSequences(o.Cgroup); err != nil {
		s.log.Warn("connections in process between network namespaces are not recognized", "error", err)
	}
	if s.paths, err = openShapers(); err != nil {
		s.log.Warn("paths of connections in process are not looked at", "error", err)
	}
	return s
}

// Close ends the service. Promoted connections go on.
func (s *Service) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Serve(false)
	if s.program != nil {
		_ = s.program.Close()
	}
	if s.paths != nil {
		s.paths.Close()
	}
}

// Serve starts serving, or gives up the socket. Promoted connections go on in either case.
func (s *Service) Serve(on bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	if s.closed && on || on == (s.end != nil) {
		s.mu.Unlock()
		return
	}
	if on {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		s.end = func() { cancel(); <-done }
		go func() {
			defer close(done)
			s.loop(ctx)
		}()
		s.mu.Unlock()
		return
	}
	end := s.end
	s.end = nil
	s.mu.Unlock()
	end()
}

// loop serves until ctx ends. While another gateway of the host has the socket it retries, to take over when that one
// has gone.
func (s *Service) loop(ctx context.Context) {
	tick := time.NewTicker(listenEvery)
	defer tick.Stop()
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		told := s.failed != nil
		s.failed = err
		s.mu.Unlock()
		if err != nil && !told {
			s.log.Warn("programs with the library are not served", "socket", s.config.Socket, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) serve(ctx context.Context) error {
	if err := makeDir(filepath.Dir(s.config.Socket)); err != nil {
		return err
	}
	l, err := broker.Listen(s.config.Socket, socketMode)
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	own, err := broker.PlaceOf(s.config.Socket)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer own.Remove()
	c := broker.Config{
		Limits:  broker.Limits{Memory: int64(s.config.Memory)},
		Scanner: scan.New(), Log: s.log, Tell: s.tell,
	}
	if s.program != nil {
		c.Namer = s.program
	}
	b := broker.New(c)
	s.mu.Lock()
	s.now, s.failed = b, nil
	b.SetBeyond(s.beyond)
	s.applyLocked()
	s.mu.Unlock()
	s.log.Info("programs with the library are served", "socket", s.config.Socket, "across_namespaces", s.program != nil)
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watches.Go(func() { s.watch(ctx, b, own, cancel) })
	err = b.Serve(ctx, l)
	if errors.Is(context.Cause(ctx), errLost) {
		err = errors.Join(err, errLost)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == b { // the next one may serve already
		s.now = nil
	}
	last := b.Counters()
	s.past.Add(&last.Totals)
	return err
}

// makeDir makes the socket's directory, if no package has, and opens it to all users regardless of the umask.
func makeDir(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), dirMode)
	if err == nil {
		err = os.Mkdir(dir, dirMode)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(dir, dirMode)
	}
	if err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	return nil
}

// errLost ends a broker that programs can no longer find.
var errLost = errors.New("the socket was removed, or is another gateway's")

// watchEvery is how often watch checks the socket, and the paths of promoted connections for shaping.
const watchEvery = time.Second

// watch ends a broker that has lost its socket, and sends connections back to the kernel whose paths have come to
// shape, until ctx ends.
func (s *Service) watch(ctx context.Context, b *broker.Broker, own broker.Place, end context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !own.Ours() {
				end(errLost)
			}
			if s.paths != nil {
				s.review(b)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) review(b *broker.Broker) {
	s.mu.Lock()
	shaped := s.live.InProcess.Shaped == config.SwitchOn
	s.mu.Unlock()
	if shaped || !slices.ContainsFunc(b.Processes(), func(p broker.Process) bool { return s.paths.Any(p.PID) }) {
		b.Review(nil)
		return
	}
	n := b.Review(func(e broker.End) inprocess.Why {
		if s.paths.StillShaped(pathOf(e.Socket), e.Process.PID) {
			return inprocess.WhyPath
		}
		return inprocess.WhyNone
	})
	if n > 0 {
		s.log.Info("connections in process go by the kernel: their paths shape now", "ends", n)
	}
}

// shapes reports whether the path of an end shapes, as far as can be seen.
func (s *Service) shapes(at broker.Socket, of broker.Process) bool {
	return s.paths != nil && s.paths.Shaped(pathOf(at), of.PID)
}

func pathOf(s broker.Socket) shapedPath {
	return shapedPath{Netns: s.Netns, Local: s.Local.Addr(), Remote: s.Remote.Addr()}
}

// Set applies rules, thresholds, a mode and the rollout's share. In mode off promoted connections go back to the
// kernel; in observe nothing new is promoted, and what is promoted stays so.
func (s *Service) Set(c config.Config, mode report.Mode, share ebpf.Share) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.mode, s.share = c, mode, share
	s.applyLocked()
}

// Share applies the rollout's share.
func (s *Service) Share(share ebpf.Share) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.share != share {
		s.share = share
		s.applyLocked()
	}
}

// Try applies the trials that are in force now.
func (s *Service) Try(held func() []*config.Trial) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trials = held()
	s.applyLocked()
}

// SetBeyond has other hosts searched for the other ends of connections; nil ends that.
func (s *Service) SetBeyond(y broker.Beyond) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beyond = y
	if s.now != nil {
		s.now.SetBeyond(y)
	}
}

// Pays reports whether the rules allow a carrier to carry an end between hosts. The Service must not be nil.
func (s *Service) Pays(h *broker.Half, by negotiate.CarrierKind) bool {
	r := s.told.rules.Load()
	return r != nil && r.pays(broker.Question{Process: h.Process, Socket: h.Socket}, by)
}

func (s *Service) applyLocked() {
	if s.now == nil {
		return
	}
	r, err := newRules(s.live, s.share, s.trials)
	if err != nil {
		s.log.Error("rules of the in-process way", "error", err) // unexpected: the steering has checked them
		return
	}
	s.told.rules.Store(&r)
	p := s.live.InProcess
	sel := &selection{service: s, rules: r, observes: s.mode != report.ModeEnforce, shaped: p.Shaped == config.SwitchOn}
	s.now.SetPolicy(sel, broker.Thresholds{Calls: uint32(p.Calls), Bytes: uint64(p.Calls) * config.BytesPerCall, Spin: p.Spin.Duration()})
	s.now.SetOff(s.mode == report.ModeOff)
}

// selection is the policy of a broker. It is never modified, only replaced.
type selection struct {
	service  *Service
	rules    rules
	observes bool
	shaped   bool // promote on shaping paths, too
}

// Select implements broker.Policy.
func (p *selection) Select(q broker.Question) inprocess.Why {
	switch {
	case !p.rules.wants(q):
		return inprocess.WhyPolicy
	case !p.shaped && p.service.shapes(q.Socket, q.Process):
		return inprocess.WhyPath
	case p.observes:
		if why := q.Program(); why != inprocess.WhyNone {
			return why
		}
		if p.service.seen.note(q.Socket) {
			p.service.told.count(p.rules.name(q))
		}
		return inprocess.WhyOff
	}
	return inprocess.WhyNone
}

// errNot is why a service does not serve that is not asked to.
var errNot = errors.New("the gateway drains or ends")

// Serving returns why programs are not served, or nil if they are. The Service must not be nil.
func (s *Service) Serving() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.now != nil:
		return nil
	case s.failed != nil:
		return s.failed
	default:
		return errNot
	}
}

// Remove removes the socket if no broker serves it any more.
func Remove(path string) error {
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Type() != os.ModeSocket {
		return nil //nolint:nilerr // no socket to remove
	}
	l, err := broker.Listen(path, socketMode) // replaces a dead one
	if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return l.Close()
}
