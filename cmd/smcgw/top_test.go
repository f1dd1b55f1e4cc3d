package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// A picture on a terminal replaces the one before, and has no more lines than that.
func TestTopOnATerminal(t *testing.T) {
	_, cfg := serveFake(t, "")
	e, stdout, stderr := testEnv()
	e.terminal = func(io.Writer) int { return 100 }
	require.Equal(t, exitOK, run(t.Context(), e, []string{"top", "-n", "2", "--interval", "100ms", "--socket", cfg.Admin}), stderr)
	require.Regexp(t, `^\x1b\[\?1049h\x1b\[\?25l\x1b\[H`, stdout.String())
	require.Regexp(t, `\x1b\[J\x1b\[H(?s:.)*\x1b\[J\x1b\[\?25h\x1b\[\?1049l$`, stdout.String())
	require.Equal(t, "a\x1b[K\r\nb\x1b[K", screen.Fitted("a\nb\nc\n", 2))
}

func TestTopKeys(t *testing.T) {
	f := &topFlags{sort: "rate"}
	for key, want := range map[byte]string{'b': "bytes", 'a': "age", 'r': "rate"} {
		require.True(t, f.press(key))
		require.Equal(t, want, f.sort)
		require.Contains(t, topOrders(), f.sort)
	}
	require.True(t, f.press('x'))
	require.False(t, f.press('q'))
	require.False(t, f.press(3))
}

// A drain on a terminal is a bar.
func TestDrainOnATerminal(t *testing.T) {
	d, cfg := serveFake(t, "")
	d.end = func() {}
	e, stdout, stderr := testEnv()
	e.terminal = func(io.Writer) int { return 100 }
	require.Equal(t, exitOK, run(t.Context(), e, []string{"drain", "--socket", cfg.Admin}), stderr)
	require.Contains(t, stdout.String(), "  0%  3 connections left, reset in 1m0s")
	require.Regexp(t, `\r\x1b\[Kdrained, 0 connections left\n$`, stdout.String())
}

// TestTopOrderOfJSON: documents have the order that was asked for, too.
func TestTopOrderOfJSON(t *testing.T) {
	e, stdout, _ := testEnv()
	e.json = true
	v := &topView{list: admin.ConnList{Conns: []report.ConnInfo{{ID: 1, TxBytes: 10}, {ID: 2, TxBytes: 20}}}}
	require.NoError(t, (&topFlags{sort: "bytes"}).draw(e, v, false))
	require.Regexp(t, `"id":2,.*"id":1,`, stdout.String())
}

// terminal is a pseudo terminal of 80 columns and 24 lines.
type terminal struct {
	near, far *os.File
	mu        sync.Mutex
	shown     string // guarded by mu
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = near.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetUint32(int(near.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	far, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(near.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	return &terminal{near: near, far: far}
}

// read collects what is shown until the program has ended.
func (x *terminal) read(done <-chan struct{}) {
	b := make([]byte, 4096)
	for {
		n, err := x.near.Read(b)
		x.mu.Lock()
		x.shown += string(b[:n])
		x.mu.Unlock()
		if err != nil {
			return
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// picture is the last whole one.
func (x *terminal) picture() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	pictures := strings.Split(x.shown, "\x1b[J")
	if len(pictures) < 2 {
		return ""
	}
	return pictures[len(pictures)-2]
}

func (x *terminal) mode(t *testing.T) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(x.far.Fd()), unix.TCGETS)
	require.NoError(t, err)
	return *m
}

var (
	escapes = regexp.MustCompile(`\x1b\[[?0-9;]*[A-Za-z]`)
	rowID   = regexp.MustCompile(`(?m)^(\d+) +`)
)

// TestTopOnAPty: keys change the order at once, without a newline, and end the program;
// what it has changed of the terminal is as before, also after ^C and a signal.
func TestTopOnAPty(t *testing.T) {
	_, cfg := serveFake(t, "")
	self, err := os.Executable()
	require.NoError(t, err)
	for _, ends := range []string{"q", "\x03", "signal"} {
		x := newTerminal(t)
		before := x.mode(t)
		cmd := exec.Cmd{
			Path: self, Args: []string{"smcgw", "top", "--interval", "100ms", "--socket", cfg.Admin}, Env: append(os.Environ(), "NO_COLOR=1"),
			Stdin: x.far, Stdout: x.far, Stderr: x.far, SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: true},
		}
		require.NoError(t, cmd.Start())
		done := make(chan struct{})
		go x.read(done)
		order := func(sort string) {
			t.Helper()
			list := sampleConns(report.ConnQuery{Details: true}, 1)
			slices.SortStableFunc(list, topOrders()[sort])
			var want []string
			for i := range list {
				want = append(want, fmt.Sprint(list[i].ID))
			}
			require.Eventually(t, func() bool {
				var got []string
				for _, m := range rowID.FindAllStringSubmatch(strings.ReplaceAll(escapes.ReplaceAllString(x.picture(), ""), "\r\n", "\n"), -1) {
					got = append(got, m[1])
				}
				return slices.Equal(want, got)
			}, 30*time.Second, 10*time.Millisecond, "%s: %v in %q", sort, want, x.picture())
		}
		order("rate")
		require.NotEqual(t, before, x.mode(t), "keys come one by one")
		for key, sort := range map[string]string{"a": "age", "b": "bytes"} {
			_, err := io.WriteString(x.near, key)
			require.NoError(t, err)
			order(sort)
		}
		for line := range strings.SplitSeq(escapes.ReplaceAllString(x.picture(), ""), "\r\n") {
			require.LessOrEqual(t, len([]rune(line)), 80, line)
		}
		if ends == "signal" {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		} else {
			_, err := io.WriteString(x.near, ends)
			require.NoError(t, err)
		}
		require.NoError(t, cmd.Wait())
		require.Equal(t, before, x.mode(t), "%q", ends)
		require.Eventually(t, func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return strings.Contains(x.shown, "\x1b[?25h\x1b[?1049l")
		}, 30*time.Second, 10*time.Millisecond)
		close(done)
		_, _ = io.WriteString(x.far, "\n") // wakes the reader
	}
}
