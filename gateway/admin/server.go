package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
)

// Bounds of the admin server: it answers tools and scrapers, not the public,
// and no peer may make it hold more than this.
const (
	adminMaxConns    = 64
	adminMaxReaders  = 48 // of them, by peers that may only read
	adminMaxHeader   = 8 << 10
	adminMaxBody     = 4 << 10
	adminReadTimeout = 5 * time.Second
	adminWriteLimit  = 30 * time.Second
	adminIdleTimeout = time.Minute
	adminStopTimeout = time.Second
	// Documents about every connection, peer or service take megabytes, and a processor.
	adminMaxDocuments       = 3
	adminMaxDocumentReaders = 2 // of them, for peers that may only read
	adminDocumentPatience   = 3 * time.Second
)

// noDeadline is for calls that take a context but do not wait.
var noDeadline = context.Background()

// Server answers on the admin socket and, if configured, serves metrics
// over TCP. It runs on ordinary goroutines, never on those of the data path.
type Server struct {
	socket  *adminSocket
	version string
	off     OffFlag
	files   process.Lane // of the off flag
	log     *slog.Logger
	scrape  tcpServer  // of metrics
	reuse   func(bool) // whether clients may keep their connections
	lists   *gate      // of documents that name connections, peers or services
	totals  *gate      // of those with sums over them

	// Page shows the gateway to people; nil if none. It is set before Serve.
	Page http.Handler

	// Metrics answers scrapers; nil: nothing does. It is set before Serve.
	Metrics http.Handler

	// Handover is given connections of peers that may change the gateway and ask for it; it
	// closes them, and returns soon after the end of its context. It is set before Serve.
	Handover func(context.Context, net.Conn)

	ctl  Control
	src  report.Source
	life context.Context // that of Serve
	told chan struct{}   // closed after the first look at the off flag

	talks sync.WaitGroup // of connections that were handed over
	close sync.Once
}

// Listen opens the sockets of cfg. It is the first thing a daemon does:
// errAdminInUse tells it that it is not alone. A nil logger discards.
func Listen(cfg config.Config, version string, log *slog.Logger) (*Server, error) {
	return listen(cfg, version, log, false)
}

// Succeed is Listen for a successor: it takes the place of a daemon that
// is still there.
func Succeed(cfg config.Config, version string, log *slog.Logger) (*Server, error) {
	return listen(cfg, version, log, true)
}

func listen(cfg config.Config, version string, log *slog.Logger, successor bool) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	socket, err := listenAdminSocket(cfg.Admin, successor)
	if err != nil {
		return nil, err
	}
	s := &Server{
		socket: socket, version: version, off: NewOffFlag(cfg.StateDir), log: log,
		told: make(chan struct{}), scrape: tcpServer{addr: cfg.Metrics.Listen},
	}
	s.lists, s.totals = newDocumentGate(), newDocumentGate()
	if err := s.lasts(); err != nil {
		log.Warn("smcgw off would not outlast this gateway", "error", err)
	}
	if err := s.scrape.listen(); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return s, nil
}

func newDocumentGate() *gate {
	return newGate(adminMaxDocuments, adminMaxDocumentReaders, adminDocumentPatience)
}

// Serve answers until ctx ends, then lets running requests finish for a moment
// and closes the sockets. It also tells ctl the off flag, at once and whenever
// the file comes or goes.
func (s *Server) Serve(ctx context.Context, ctl Control, src report.Source) error {
	s.ctl, s.src = ctl, src
	defer s.Close()
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.life = ctx
	srv := s.httpServer(s.adminMux(), s.socket.withPeer)
	s.reuse = srv.SetKeepAlivesEnabled
	var wg sync.WaitGroup
	told := sync.OnceFunc(func() { close(s.told) })
	wg.Go(func() { s.watchOff(ctx, func(off bool) error { defer told(); return s.applyOff(off) }) })
	wg.Go(func() {
		cancel(srv.Serve(limitListener(s.socket, adminMaxConns).Keep(adminMaxReaders, s.socket.mayWrite)))
	})
	s.scrape.serve(s.httpServer(s.metricsMux(), nil), cancel)
	<-ctx.Done()
	stopServer(srv)
	s.scrape.close()
	s.talks.Wait()
	wg.Wait()
	if parent.Err() == nil { // a listener broke
		return fmt.Errorf("serve admin: %w", context.Cause(ctx))
	}
	return nil
}

// Told returns a channel that is closed when the gateway knows the off flag.
func (s *Server) Told() <-chan struct{} { return s.told }

// Close stops listening. It is idempotent and is called by Serve.
func (s *Server) Close() error {
	var err error
	s.close.Do(func() {
		err = ignoreClosed(s.socket.Close())
		s.scrape.close()
	})
	return err
}

// ignoreClosed drops the complaint about a listener that http closed before.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) httpServer(h http.Handler, conn func(context.Context, net.Conn) context.Context) *http.Server {
	return &http.Server{
		Handler:           h,
		ConnContext:       conn,
		ReadHeaderTimeout: adminReadTimeout,
		ReadTimeout:       adminReadTimeout,
		WriteTimeout:      adminWriteLimit,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    adminMaxHeader,
		// Every request is authorised, also one that is about no path.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// stopServer lets running requests finish for a moment.
func stopServer(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), adminStopTimeout)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		_ = srv.Close()
	}
}

// applyOff carries a switch thrown in the file system to the datapath.
func (s *Server) applyOff(off bool) error {
	err := s.ctl.SetOff(off)
	if err != nil {
		s.log.Error("off switch not applied", "off", off, "error", err)
	}
	return err
}
