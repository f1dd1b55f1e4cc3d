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
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/private"
	"github.com/smcgw/smcgw/inprocess/scan"
)

// preloadSchema names the format of preloadDoc.
const preloadSchema = "smcgw.preload/v1"

// preloadDoc lists what is started with the library.
type preloadDoc struct {
	Schema string `json:"schema"`
	// Library is the library's directory, empty: it is not installed.
	Library string `json:"library,omitempty"`
	// Host means that every program of the host is.
	Host  bool     `json:"host"`
	Units []string `json:"units"`
}

func newPreload(e *env) *cobra.Command {
	var root string
	c := &cobra.Command{
		Use:   "preload",
		Short: "Have units, or all programs of the host, start with the library",
		Long: `Preload has programs start with libsmcgw, so that their connections to programs of this
host that have it, too, can be promoted. One command is started so by "smcgw run".
Without more, it lists what starts with the library.`,
		RunE: func(*cobra.Command, []string) error { return e.preloadStatus(root) },
	}
	c = verb(e, c)
	c.PersistentFlags().StringVar(&root, "root", "/", "the directory that has the files, as of an image")
	c.AddCommand(newPreloadSwitch(e, &root, true, &cobra.Command{
		Use:   "enable UNIT | --host",
		Short: "Have a unit, or every program, start with the library",
		Long: `Enable writes a drop-in for a service of systemd, or with --host a line into
/etc/ld.so.preload. What runs goes on as it is, and has the library from its next start.

A unit is refused if there is none of the name, if it sets LD_PRELOAD itself, has
another root directory, or a SystemCallFilter= that would end it. The host is refused
if a program does not start as before with the library, others than root can write it,
or there are programs of 32 bits. Programs of musl do not read /etc/ld.so.preload.`,
	}), newPreloadSwitch(e, &root, false, &cobra.Command{
		Use:   "disable UNIT | --host",
		Short: `Undo "smcgw preload enable"`,
		Long: `Disable removes the drop-in, or the line. What runs goes on as it is, and is without the
library from its next start.`,
	}))
	return c
}

// preloadHost returns the installation that preload changes. Library is where the host's programs find it.
func (e *env) preloadHost(root string) (*adopt.Installation, error) {
	h := &adopt.Installation{Root: root, Library: adopt.Installed}
	if root != "/" { // installed as by a package
		if _, err := os.Stat(filepath.Join(root, h.Library, adopt.Name)); err != nil {
			return h, fmt.Errorf("preload --root: %w", err)
		}
		return h, nil
	}
	own, err := os.Executable()
	if err != nil {
		return h, err
	}
	file, err := adopt.Library(scan.Glibc, e.getenv(adopt.EnvLibrary), own)
	if err == nil { // otherwise keep the default, which may have been enabled
		h.Library = filepath.Dir(file)
	}
	return h, err
}

// newPreloadSwitch makes the verbs enable and disable.
func newPreloadSwitch(e *env, root *string, on bool, c *cobra.Command) *cobra.Command {
	var host bool
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 || host == (len(args) == 1) {
			return usagef("preload: name one unit, or --host")
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		h, err := e.preloadHost(*root)
		if err != nil && on {
			return err
		}
		switch {
		case host && *root != "/" && on:
			return usagef("preload enable: --host tries the library, so it takes no --root")
		case host:
			return e.answered(e.preloadHostWide(cmd.Context(), h, on))
		default:
			return e.answered(e.preloadUnit(h, args[0], on))
		}
	}
	c.Flags().BoolVar(&host, "host", false, "every program of the host")
	return withJSON(e, c)
}

// preloadHostWide switches every program.
func (e *env) preloadHostWide(ctx context.Context, h *adopt.Installation, on bool) (r admin.Result, err error) {
	r.Verb = preloadVerb(on)
	var changed bool
	r.Message = "programs of this host start without the library from now on"
	if on {
		changed, err = h.EnableHost(ctx, nil)
		r.Message = "programs of this host start with the library from now on; those that run have it when they are started again"
	} else {
		changed, err = h.DisableHost()
	}
	if err != nil {
		return r, fmt.Errorf("preload: %w", err)
	}
	if !changed {
		r.Message = alreadySo
	}
	return r, nil
}

// alreadySo is the message if nothing had to be changed.
const alreadySo = "nothing to do: it is so already"

// preloadVerb returns the verb's name for a result.
func preloadVerb(on bool) string {
	if on {
		return "preload enable"
	}
	return "preload disable"
}

// preloadUnit switches one unit.
func (e *env) preloadUnit(h *adopt.Installation, name string, on bool) (r admin.Result, err error) {
	r.Verb = preloadVerb(on)
	var own string
	var changed bool
	if on {
		u, err := h.Unit(name)
		if err == nil {
			changed, err = h.EnableUnit(u)
		}
		if err != nil {
			return r, fmt.Errorf("preload: %w", err)
		}
		for _, w := range append(u.Warnings(h.Library), nativePrograms(h, u)...) {
			fmt.Fprintln(e.stderr, "warning:", w)
		}
		own = u.Name
	} else if own, changed, err = h.DisableUnit(name); err != nil {
		return r, fmt.Errorf("preload: %w", err)
	}
	r.Message = own + ": " + alreadySo
	if changed {
		r.Message = fmt.Sprintf("%s: from its next start: systemctl daemon-reload && systemctl restart %s", own, restarted(own))
	}
	return r, nil
}

// restarted returns the argument with which systemctl restarts a unit: for a template, which cannot run itself, its
// running instances.
func restarted(unit string) string {
	if stem, is := strings.CutSuffix(unit, "@.service"); is {
		unit = stem + "@*.service"
	}
	if strings.ContainsAny(unit, `\*`) {
		return "'" + unit + "'"
	}
	return unit
}

// nativePrograms lists the programs of a unit for which the library is of no use.
func nativePrograms(h *adopt.Installation, u *adopt.Unit) (list []string) {
	if h.Root != "/" {
		return nil
	}
	for _, file := range u.Programs() {
		loaded, err := scan.Resolve(file)
		if err != nil {
			continue // it may not exist yet
		}
		if r, err := scan.New().Program(loaded); err == nil && !r.Promotable() {
			var names []string
			for _, reason := range r.Reasons {
				names = append(names, string(reason))
			}
			list = append(list, fmt.Sprintf("the connections of %s stay native (%s): smcgw doctor --program %s", file, strings.Join(names, ", "), file))
		}
	}
	return list
}

// preloadStatus lists what is started with the library.
func (e *env) preloadStatus(root string) error {
	h, missing := e.preloadHost(root)
	doc := preloadDoc{Schema: preloadSchema}
	if missing == nil {
		doc.Library = h.Library
	}
	var errs [2]error
	doc.Host, errs[0] = h.HostEnabled()
	doc.Units, errs[1] = h.Units()
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("preload: %w", err)
	}
	if e.json {
		return e.printJSON(doc)
	}
	host, units, library := "only programs that are told to", "none", "not installed"
	if doc.Host {
		host = "every program"
	}
	if len(doc.Units) > 0 {
		units = strings.Join(doc.Units, " ")
	}
	if doc.Library != "" {
		library = doc.Library
	}
	if missing != nil && (doc.Host || len(doc.Units) > 0) {
		fmt.Fprintln(e.stderr, "warning: every program that starts so complains that the library is missing: install it, or smcgw preload disable")
	}
	s := e.screen(e.stdout)
	_, err := fmt.Fprint(e.stdout, s.Field("Library:", library)+s.Field("Host:", host)+s.Field("Units:", units))
	return printed(err)
}

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
	if p.counter, err = private.Dial(at, p.run); unserved(err) {
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

// unserved reports an error of a socket without a daemon, or with one that does not serve this user. A daemon that
// refuses decides for the host.
func unserved(err error) bool {
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
