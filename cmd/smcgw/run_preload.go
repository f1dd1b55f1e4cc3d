package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/private"
	"github.com/smcgw/smcgw/inprocess/scan"
)

// inProcessDoc describes the connections of a command in process.
type inProcessDoc struct {
	// Broker is the socket of the broker, empty if there was none.
	Broker string `json:"broker,omitempty"`
	// Promoted counts connections, each once; Bytes went through their rings, in both directions.
	Promoted uint64 `json:"promoted"`
	Bytes    uint64 `json:"bytes"`
	// Native counts ends by reason.
	Native map[string]uint64 `json:"native,omitempty"`
	// Obstacle is why the command could not have the library.
	Obstacle string `json:"obstacle,omitempty"`
	// unknown means that the broker ended before the command did, so there are no counts.
	unknown bool
	// off means that the broker promoted nothing when the command ended, so programs did not ask.
	off bool
}

// preload is a command that is to have the library.
type preload struct {
	doc     inProcessDoc
	program string
	library string
	run     uint64
	counter *private.Counter // nil: it runs without the library
}

// newPreload checks whether a command can have the library, and finds a broker for it. Obstacles are reported at the
// end: the command runs anyway.
func (e *env) newPreload(ctx context.Context, name string) *preload {
	p := &preload{program: name, run: rand.Uint64() | 1}
	if err := e.findBroker(ctx, p); err != nil {
		p.doc.Obstacle = err.Error()
	}
	return p
}

func (e *env) findBroker(ctx context.Context, p *preload) error {
	program, err := loadable(p.program)
	if err != nil {
		return err
	}
	own, err := ownProgram()
	if err != nil {
		return err
	}
	if p.library, err = adopt.Library(program.Libc, e.getenv(adopt.EnvLibrary), own); err != nil {
		return err
	}
	at := cmp.Or(e.getenv(adopt.EnvSocket), adopt.DefaultSocket)
	if p.counter, err = private.Dial(at, p.run); nobodyServes(err) {
		var dir string
		// Without a session (su, cron) the variable is missing, but its usual value exists anyway.
		usual := "/run/user/" + strconv.Itoa(os.Geteuid())
		if dir, err = private.Dir([]string{e.getenv("XDG_RUNTIME_DIR"), usual}, "/tmp"); err != nil {
			return err
		}
		at = filepath.Join(dir, private.SocketName)
		p.counter, err = private.Join(ctx, dir, p.run, func(socket *os.File) error { return e.startBroker(dir, socket) })
	}
	if err != nil {
		return err
	}
	p.doc.Broker = at
	return nil
}

// loadable returns a program if it can have the library.
func loadable(name string) (scan.Program, error) {
	program, err := scan.Inspect(name)
	if err == nil && program.Obstacle != "" {
		err = fmt.Errorf("%s %s", program.Path, program.Obstacle.Meaning())
	}
	return program, err
}

// ownProgram returns the path of this program, not that of a link to it.
func ownProgram() (string, error) {
	own, err := os.Executable()
	if err == nil {
		own, err = filepath.EvalSymlinks(own)
	}
	if err != nil {
		return "", fmt.Errorf("own program: %w", err)
	}
	return own, nil
}

// nobodyServes reports an error of a socket without a daemon, or with one that does not serve this user. A daemon that
// refuses decides for the host.
func nobodyServes(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrPermission)
}

// environment returns the environment of the command.
func (p *preload) environment() []string {
	if p.counter == nil {
		return nil // inherit ours
	}
	return adopt.Environment(os.Environ(), p.library, p.doc.Broker, p.run)
}

// settle waits briefly until the broker has seen the end of the command's processes, and asks for the sums.
func (p *preload) settle() {
	if p.counter == nil {
		return
	}
	for end := time.Now().Add(runSettle); ; time.Sleep(5 * time.Millisecond) {
		t, err := p.counter.Totals()
		if err != nil {
			p.doc.Obstacle, p.doc.unknown = "counts of the broker: "+err.Error(), true
			if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
				p.doc.Obstacle = "the daemon that counted them has ended, or was restarted"
			}
			return
		}
		if t.Processes > 0 && time.Now().Before(end) {
			continue
		}
		p.doc.Promoted, p.doc.Bytes, p.doc.Native, p.doc.off = t.Promoted, t.Bytes, map[string]uint64{}, t.Off
		for why, n := range t.Native {
			p.doc.Native[why.String()] = n
		}
		return
	}
}

func (p *preload) close() {
	if p.counter != nil {
		_ = p.counter.Close()
	}
}

// summary says in a line how many connections were promoted, or why none was.
func (d *inProcessDoc) summary() string {
	switch {
	case d.Promoted > 0:
		text := fmt.Sprintf("%s promoted, %s by shared memory", plural(int(d.Promoted), "connection"), screen.Size(d.Bytes))
		if len(d.Native) > 0 {
			text += "; ends that went native: " + listed(d.Native)
		}
		return text
	case d.unknown:
		return "what became of the connections is not known: " + d.Obstacle
	case d.Obstacle != "":
		return "no connection promoted: " + d.Obstacle
	case len(d.Native) == 0 && d.off:
		return "no connection promoted: " + inprocess.WhyOff.Meaning()
	case len(d.Native) == 0:
		return "no connection promoted: none moved enough to ask"
	}
	names := slices.SortedFunc(maps.Keys(d.Native), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.Native[b], d.Native[a]), cmp.Compare(a, b))
	})
	return fmt.Sprintf("no connection promoted: %s (%s)", meaningOf(names[0]), listed(d.Native))
}

func meaningOf(name string) string {
	for _, why := range inprocess.Whys() {
		if why.String() == name {
			return why.Meaning()
		}
	}
	return name
}
