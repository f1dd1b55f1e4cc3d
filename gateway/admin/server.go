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

// Bounds of the admin server. It serves tools and scrapers, not the public, and no peer can
// make it hold more than this.
const (
	adminMaxConns    = 64
	adminMaxReaders  = 48 // of these, for peers that may only read
	adminMaxHeader   = 8 << 10
	adminMaxBody     = 4 << 10
	adminReadTimeout = 5 * time.Second
	adminWriteLimit  = 30 * time.Second
	adminIdleTimeout = time.Minute
	adminStopTimeout = time.Second
	// Documents about every connection, peer or service take megabytes, and a processor.
	adminMaxDocuments       = 3
	adminMaxDocumentReaders = 2 // of these, for peers that may only read
	adminDocumentPatience   = 3 * time.Second
)

// noDeadline is for calls that take a context but do not block.
var noDeadline = context.Background()

// Server serves the admin socket and, if configured, metrics over TCP. It runs on ordinary
// goroutines, never on those of the data path.
type Server struct {
	socket  *adminSocket
	version string
	off     OffFlag
	files   process.Lane // of the off flag
	log     *slog.Logger
	scrape  tcpServer  // serves metrics
	reuse   func(bool) // whether clients may keep their connections
	lists   *gate      // for documents that name connections, peers or services
	totals  *gate      // for documents with sums over them

	// Page serves the status page; nil: none. It is set before Serve.
	Page http.Handler

	// Metrics serves scrapers; nil: none. It is set before Serve.
	Metrics http.Handler

	// Handover is called with the connections of peers that may change the gateway and
	// request a handover. It closes them, and returns soon after its context ends. It is set
	// before Serve.
	Handover func(context.Context, net.Conn)

	ctl  Control
	src  report.Source
	life context.Context // the context of Serve
	told chan struct{}   // closed after the first check of the off flag

	talks sync.WaitGroup // connections that were handed over
	close sync.Once
}

// Listen opens the sockets of cfg. It is the first thing a daemon does: errAdminInUse tells
// it that another daemon is running. A nil logger discards.
func Listen(cfg config.Config, version string, log *slog.Logger) (*Server, error) {
	return listen(cfg, version, log, false)
}

// Succeed is Listen for a successor: it takes the place of a daemon that is still running.
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

// Serve serves requests until ctx ends, then gives running requests a moment to finish and
// closes the sockets. It also passes the off flag to ctl, at once and whenever the file
// appears or disappears.
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
	if parent.Err() == nil { // a listener failed
		return fmt.Errorf("serve admin: %w", context.Cause(ctx))
	}
	return nil
}

// Told returns a channel that is closed once the gateway knows the off flag.
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

// ignoreClosed drops the error about a listener that http has already closed.
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
		// Every request must be authorised, even one without a path.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// stopServer gives running requests a moment to finish.
func stopServer(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), adminStopTimeout)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		_ = srv.Close()
	}
}

// applyOff passes a switch changed in the file system to the datapath.
func (s *Server) applyOff(off bool) error {
	err := s.ctl.SetOff(off)
	if err != nil {
		s.log.Error("off switch not applied", "off", off, "error", err)
	}
	return err
}
