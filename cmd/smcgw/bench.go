package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/scan"
)

func newBench(e *env) *cobra.Command {
	var p peerBench
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare carriers with plain TCP",
		Long: `Bench --peer compares plain TCP, every carrier between the running gateways of two
hosts, and rings in process that these carriers join, in interleaved rounds: throughput
each way, latency, connections per second, processor time, and memory of idle
connections. On the other host "smcgw bench --serve" must run; it prints the token that
this one needs. While it lasts, both gateways have a rule for the port of the
measurement, which needs the same permission as "smcgw off". Each value is from
connections that the gateway says were carried as claimed; what cannot be carried says
why.

The output is medians with their spread, and where plain TCP wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			switch {
			case p.serve && p.host != "":
				return usagef("bench: one of --peer and --serve")
			case p.serve:
				return p.runServe(ctx, e)
			case p.host != "":
				return p.run(ctx, e)
			default:
				return usagef("bench: --peer HOST or --serve is needed")
			}
		},
	}
	p.register(c.Flags())
	return withSocket(e, verb(e, c))
}

const (
	// benchPort is the port of measurements, which no service uses.
	benchPort = 4792
	// benchTokenVariable holds the token, which a command line would expose.
	benchTokenVariable = "SMCGW_BENCH_TOKEN"
	// benchServeSchema names the document printed by --serve --json.
	benchServeSchema = "smcgw.bench.serve/v1"
	// loadName is the program that does works with the library.
	loadName = "smcgw-load"
)

// peerBench are the flags of bench --peer and --serve.
type peerBench struct {
	host   string
	token  string
	serve  bool
	listen string

	rounds   int
	duration time.Duration
}

func (p *peerBench) register(fs *pflag.FlagSet) {
	fs.IntVar(&p.rounds, "rounds", 0, "how often everything is measured (default 5)")
	fs.DurationVar(&p.duration, "duration", 0, "of one measurement (default 2s)")
	fs.StringVar(&p.host, "peer", "", "compare with this host, HOST or HOST:PORT, where bench --serve runs")
	fs.StringVar(&p.token, "token", "", "what bench --serve printed (default $"+benchTokenVariable+"); with --serve: a new one")
	fs.BoolVar(&p.serve, "serve", false, "serve measurements in the foreground, one at a time")
	fs.StringVar(&p.listen, "listen", "", "with --serve: address and port (default every address, port "+strconv.Itoa(benchPort)+")")
}

// secret returns the token that was given, if one was.
func (p *peerBench) secret(e *env) (t bench.Token, given bool, err error) {
	s := p.token
	if s == "" {
		s = e.getenv(benchTokenVariable)
	}
	if s == "" {
		return t, false, nil
	}
	if t, err = bench.ParseToken(s); err != nil {
		return t, false, &exitError{exitUsage, fmt.Errorf("bench: --token: %w", err)}
	}
	return t, true, nil
}

// runServe serves until a signal ends it.
func (p *peerBench) runServe(ctx context.Context, e *env) error {
	token, given, err := p.secret(e)
	if err != nil {
		return err
	}
	if !given {
		token = bench.NewToken()
	}
	g, closeGateway, err := e.beside(ctx)
	if err != nil {
		return err
	}
	defer closeGateway()
	if g == nil { // a gateway may start later
		c := e.reach()
		defer c.Close()
		g = bench.Beside(c)
	}
	listen := p.listen
	if listen == "" {
		listen = net.JoinHostPort("", strconv.Itoa(benchPort))
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: another bench --serve may run; --listen :PORT takes another port", err)
		}
		return fmt.Errorf("bench --serve: %w", err)
	}
	if err := e.sayServing(ln.Addr().(*net.TCPAddr).AddrPort(), token); err != nil {
		return errors.Join(err, ln.Close())
	}
	log := slog.New(slog.NewTextHandler(e.stderr, nil))
	return bench.Serve(ctx, ln, bench.ServeOptions{Token: token, Gateway: g, Program: e.loadProgram(), Log: log})
}

// sayServing prints what the other host needs.
func (e *env) sayServing(at netip.AddrPort, token bench.Token) error {
	if e.json {
		return e.printJSON(struct {
			Schema string         `json:"schema"`
			Listen netip.AddrPort `json:"listen"`
			Token  string         `json:"token"`
		}{benchServeSchema, at, token.String()})
	}
	host := at.Addr().String()
	if at.Addr().IsUnspecified() {
		host = "THIS_HOST"
	}
	if at.Port() != benchPort {
		host = net.JoinHostPort(host, strconv.Itoa(int(at.Port())))
	}
	_, err := fmt.Fprintf(e.stdout, "Serving measurements on %v until ^C. On the other host:\n  smcgw bench --peer %s --token %s\n", at, host, token)
	return printed(err)
}

// run compares and prints the result, even a partial one if it was interrupted.
func (p *peerBench) run(ctx context.Context, e *env) error {
	token, given, err := p.secret(e)
	if err != nil {
		return err
	}
	if !given {
		return usagef("bench: --peer needs --token, which bench --serve prints")
	}
	host, port, err := hostPort(p.host)
	if err != nil {
		return err
	}
	addr, err := lookUpHost(ctx, host)
	if err != nil {
		return fmt.Errorf("bench --peer: %w", err)
	}
	g, closeGateway, err := e.beside(ctx)
	if err != nil {
		return err
	}
	defer closeGateway()
	log, progress := e.stderr, e.screen(e.stderr).Progress()
	if e.screen(e.stderr).Terminal() {
		log = io.Discard // the progress bar shows it
	}
	r, err := bench.Run(ctx, bench.Options{
		To: netip.AddrPortFrom(addr, cmp.Or(port, benchPort)), Token: token, Duration: p.duration, Rounds: p.rounds,
		Gateway: g, Program: e.loadProgram(), Log: log, Command: p.command(),
		Progress: func(done, total int) {
			progress.Show(float64(done), float64(total), fmt.Sprintf("measurement %d of %d", done+1, total))
		},
	})
	progress.Clear()
	if err != nil {
		err = fmt.Errorf("bench --peer: %w", err)
	}
	if r == nil {
		return err
	}
	show := r.Text
	if e.json {
		show = r.JSON
	}
	return errors.Join(err, printed(show(e.stdout)))
}

// loadProgram returns the program that does works with the library, which is in the same directory.
func (e *env) loadProgram() *bench.Program {
	p, err := e.findLoad()
	if err != nil {
		p.Missing = err.Error()
	}
	return &p
}

func (e *env) findLoad() (p bench.Program, err error) {
	own, err := ownProgram()
	if err != nil {
		return p, err
	}
	library, err := adopt.Library(scan.Glibc, e.getenv(adopt.EnvLibrary), own)
	if err != nil {
		return p, err
	}
	p.Path = filepath.Join(filepath.Dir(library), loadName)
	if _, err := loadable(p.Path); err != nil {
		return p, err
	}
	p.Env = adopt.Environment(os.Environ(), library, cmp.Or(e.getenv(adopt.EnvSocket), adopt.DefaultSocket), 0)
	return p, nil
}

// command returns the command line without the token.
func (p *peerBench) command() string {
	words := []string{"smcgw bench --peer", p.host}
	if p.rounds != 0 {
		words = append(words, "--rounds", strconv.Itoa(p.rounds))
	}
	if p.duration != 0 {
		words = append(words, "--duration", p.duration.String())
	}
	return strings.Join(words, " ")
}

// lookUpHost resolves a host, or parses it if it is an address.
func lookUpHost(ctx context.Context, host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return a, nil
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return list[0].Unmap(), nil
}

// beside returns the gateway of this host, or nil if none answers. A gateway that refuses the caller is an error,
// because what it carries could not be determined.
func (e *env) beside(ctx context.Context) (g bench.Gateway, closeClient func(), err error) {
	c := e.reach()
	_, err = c.Version(ctx)
	switch {
	case errors.Is(err, admin.ErrDaemonUnreachable):
		c.Close()
		fmt.Fprintln(e.stderr, "smcgw: no gateway on this host:", err)
		return nil, func() {}, nil
	case errors.Is(err, os.ErrPermission):
		c.Close()
		return nil, nil, fmt.Errorf("bench: %w", err)
	case err != nil:
		c.Close()
		return nil, nil, err
	}
	return bench.Beside(c), c.Close, nil
}
