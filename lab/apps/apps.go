package apps

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that makes a process run as an app.
const Variable = "SMCGW_TESTNET_APP"

// Event is one line of an app's output.
type Event struct {
	// Event says what happened: listening, accepted, closed (a server's connection), connected, ended (a client's
	// connection), done (a command of hold), peer, alien, tally, reported (a datagram server), lost (a datagram
	// client), result (the last line of a client).
	Event string `json:"event"`
	// Mode is the server's mode or the client's command.
	Mode string `json:"mode,omitempty"`
	// ID numbers connections from 0.
	ID int `json:"id"`
	// Local and Remote are the results of getsockname and getpeername. IPv4 addresses are unmapped.
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
	// Errno is the name of the system error, such as ECONNREFUSED; Error is the whole text, also of other errors. An
	// orderly end of stream is not an error.
	Errno string `json:"errno,omitempty"`
	Error string `json:"error,omitempty"`
	// Sent and Received count payload bytes.
	Sent     int64 `json:"sent,omitempty"`
	Received int64 `json:"received,omitempty"`
	// Micros is the duration of what the event is about. For results of many operations it is the longest one, and
	// MedianMicros the median.
	Micros       int64 `json:"micros,omitempty"`
	MedianMicros int64 `json:"median_micros,omitempty"`
	// ConnectMicros is the duration of connect in results of clients with one connection, and the median for many short
	// ones.
	ConnectMicros int64 `json:"connect_micros,omitempty"`
	// Repeated counts the segments that the kernel had retransmitted when connect returned: unanswered SYNs.
	Repeated int `json:"repeated,omitempty"`
	// GapMicros is the longest time between two answers to datagrams. Device is the name of the device on which
	// datagrams arrived, as the kernel tells the server.
	GapMicros int64  `json:"gap_micros,omitempty"`
	Device    string `json:"device,omitempty"`
	// Lost counts datagrams without an answer in time, Late answers that came too late or repeatedly.
	Lost int `json:"lost,omitempty"`
	Late int `json:"late,omitempty"`
	// OK and Failed count operations; Errnos counts the failed ones by errno.
	OK     int            `json:"ok"`
	Failed int            `json:"failed"`
	Errnos map[string]int `json:"errnos,omitempty"`
	// Failures describes the first failed operations of many.
	Failures []string `json:"failures,omitempty"`
	// Server is what a server with a name has reported about a transfer. Visits are the single visits of the client
	// visit.
	Server *Server `json:"server,omitempty"`
	Visits []Event `json:"visits,omitempty"`
}

// App is a program of another package. Only programs that can run it link what it needs.
type App struct {
	Name string
	Run  func(args []string, print func(Event)) error
}

// Init runs the app, and never returns, if this process was started as one.
func Init(more ...App) {
	if os.Getenv(Variable) == "" {
		return
	}
	// SIGTERM ends an app immediately. SIGPIPE must not; writes report EPIPE.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, more...))
}

// printer writes events as whole lines.
type printer struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *printer) print(e Event) {
	line, err := json.Marshal(e)
	if err != nil {
		return // no field of Event can cause an error
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.w.Write(append(line, '\n'))
}

var errUsage = errors.New("usage: serve MODE=ADDRESS... | serve-udp MODE=ADDRESS... | web ADDRESS | forward ADDRESS... | fetch [flags] | " +
	"connect | ping | transfer | visit | churn | short | hold [flags] | ping-udp [flags]")

// Main runs the app that the arguments name and returns its exit status: 0 if everything went as it should, 1 if not, 2
// for wrong arguments.
func Main(args []string, in io.Reader, out io.Writer, more ...App) int {
	p := &printer{w: out}
	err := run(args, in, p, more)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage), errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(os.Stderr, err)
		return 2
	default:
		return 1
	}
}

func run(args []string, in io.Reader, p *printer, more []App) error {
	if len(args) == 0 {
		return errUsage
	}
	for _, app := range more {
		if app.Name == args[0] {
			return app.Run(args[1:], p.print)
		}
	}
	switch args[0] {
	case "serve":
		return serve(args[1:], p)
	case "forward":
		return forward(args[1:], p)
	case "serve-udp":
		return serveUDP(args[1:], in, p)
	case "ping-udp":
		return pingUDP(args[1:], in, p)
	case "web":
		return web(args[1:], p)
	case "fetch":
		return fetch(args[1:], p)
	}
	client, ok := map[string]func(*client) Event{
		"connect":  (*client).connect,
		"ping":     (*client).ping,
		"transfer": (*client).transfer,
		"visit":    (*client).visit,
		"churn":    (*client).churn,
		"short":    (*client).short,
		"hold":     (*client).hold,
	}[args[0]]
	if !ok {
		return errUsage
	}
	c, err := parseClient(args[0], args[1:])
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	c.in, c.out = in, p
	result := client(c)
	result.Event, result.Mode = "result", args[0]
	p.print(result)
	if result.Failed > 0 {
		return errFailed
	}
	return nil
}

var errFailed = errors.New("failed")

// errnoName returns the name of the system error in err, TIMEOUT or GAVE_UP if the program gave up (-limit, -timeout),
// or "".
func errnoName(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "TIMEOUT"
	case errors.Is(err, errGaveUp):
		return "GAVE_UP"
	default:
		return ""
	}
}

// withError adds an error to an event. End of stream is not an error, unless err also contains a system error, which
// the kernel reports only once, possibly to the other direction.
func (e Event) withError(err error) Event {
	if err != nil && (errnoName(err) != "" || !errors.Is(err, io.EOF)) {
		e.Errno, e.Error = errnoName(err), err.Error()
	}
	return e
}
