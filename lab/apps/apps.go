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

// Variable is the environment variable that turns a process into an app.
const Variable = "SMCGW_TESTNET_APP"

// Event is one line of an app's output.
type Event struct {
	// Event says what happened: listening, accepted, closed (a server's
	// connection), connected, ended (a client's connection), done (a command
	// of hold), peer, alien, tally, reported (a server of datagrams), lost (a
	// client of datagrams), result (the last line of a client).
	Event string `json:"event"`
	// Mode is the server's mode or the client's command.
	Mode string `json:"mode,omitempty"`
	// ID counts connections from 0.
	ID int `json:"id"`
	// Local and Remote are getsockname and getpeername, with an IPv4 address
	// written as such.
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
	// Errno is the name of the system's error, like ECONNREFUSED; Error is the
	// whole text, also of errors that are not of the system's. An orderly end
	// of stream is no error.
	Errno string `json:"errno,omitempty"`
	Error string `json:"error,omitempty"`
	// Sent and Received count payload bytes.
	Sent     int64 `json:"sent,omitempty"`
	Received int64 `json:"received,omitempty"`
	// Micros is the duration of what the event is about; for results of many
	// operations the longest one, with the median beside it.
	Micros       int64 `json:"micros,omitempty"`
	MedianMicros int64 `json:"median_micros,omitempty"`
	// ConnectMicros is how long connect took, in the result of clients with
	// one connection, the median for many short ones.
	ConnectMicros int64 `json:"connect_micros,omitempty"`
	// P99Micros is the 99th percentile beside the median, and AllMicros how long
	// all operations took together.
	P99Micros int64 `json:"p99_micros,omitempty"`
	AllMicros int64 `json:"all_micros,omitempty"`
	// Repeated counts the segments that the kernel had sent again when connect
	// returned: SYNs without an answer.
	Repeated int `json:"repeated,omitempty"`
	// GapMicros is the longest time between two answers to datagrams, and Device
	// the name of the device they came by, as the kernel tells the server.
	GapMicros int64  `json:"gap_micros,omitempty"`
	Device    string `json:"device,omitempty"`
	// Lost counts datagrams without an answer in time, Late answers after
	// their time and repeated ones.
	Lost int `json:"lost,omitempty"`
	Late int `json:"late,omitempty"`
	// OK and Failed count operations, and Errnos the failed ones by errno.
	OK     int            `json:"ok"`
	Failed int            `json:"failed"`
	Errnos map[string]int `json:"errnos,omitempty"`
	// Failures describes the first failed operations of many.
	Failures []string `json:"failures,omitempty"`
	// Server is what the server has told of a transfer, if it has a name, and Visits are
	// those of the client visit, one by one.
	Server *Server `json:"server,omitempty"`
	Visits []Event `json:"visits,omitempty"`
}

// App is a program of another package, for those that can run it: what it needs
// is then not linked into everything that runs apps.
type App struct {
	Name string
	Run  func(args []string, print func(Event)) error
}

// Init becomes an app, and never returns, when this process was started as one.
func Init(more ...App) {
	if os.Getenv(Variable) == "" {
		return
	}
	// SIGTERM ends an app at once; SIGPIPE must not, writes report EPIPE.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, more...))
}

// printer writes events, whole lines at a time.
type printer struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *printer) print(e Event) {
	line, err := json.Marshal(e)
	if err != nil {
		return // no field of Event can fail
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.w.Write(append(line, '\n'))
}

var errUsage = errors.New("usage: serve MODE=ADDRESS... | serve-udp MODE=ADDRESS... | web ADDRESS | forward ADDRESS... | fetch [flags] | " +
	"connect | ping | transfer | visit | churn | short | hold [flags] | ping-udp [flags] | memcached [flags]")

// Main runs the app that the arguments name and returns its exit status: 0 if
// everything went as it should, 1 if not, 2 for wrong arguments.
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
	case "memcached":
		return memcached(args[1:], p)
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

// errnoName returns the name of the system error in err, TIMEOUT or GAVE_UP for
// the program's own impatience (-limit, -timeout), or "".
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

// withError notes an error in an event. End of stream is no error, unless the other
// direction has taken the system's error: it is told once only.
func (e Event) withError(err error) Event {
	if err != nil && (errnoName(err) != "" || !errors.Is(err, io.EOF)) {
		e.Errno, e.Error = errnoName(err), err.Error()
	}
	return e
}
