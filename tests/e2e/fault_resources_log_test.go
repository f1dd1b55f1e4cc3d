package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/matrix"
)

// faultLog has the daemon's log not be taken: the disk is full or fills up, or the reader of the pipe does not read
// or has gone. Every connection must be carried all the same, without waiting, and lost lines must be counted.
func faultLog(t *testing.T, c *tally) {
	for _, sink := range matrix.Cells(t, []struct {
		name string
		open func(t *testing.T) (log, reader *os.File)
		lost bool // some lines are lost; otherwise the queue has room for those of this test
	}{
		{"full disk", fullDisk, true},
		{"filling disk", smallDisk, true},
		{"deaf reader", deafReader, false},
		{"no reader", goneReader, true},
	}, 2) {
		t.Run(sink.name, func(t *testing.T) {
			w := newServed(t)
			log, reader := sink.open(t)
			g1 := w.upBehind(w.h1, settings{}, log) // the template of the configuration logs every connection
			g2 := w.upBehind(w.h2, settings{}, log)
			require.NoError(t, log.Close())
			c.faults(2)
			const conns = 1500
			before, late := g1.status().FlowsTotal[w.via], w.late()
			e, err := w.app(w.h1, 2*time.Minute, "churn", "-count", itoa(conns), "-parallel", "8", "-size", "8000",
				"-limit", "60s", "-to", w.h2.AddrPort4(transferPort).String())
			c.tried(t, e, err, conns)
			e, err = w.app(w.h1, 2*time.Minute, "transfer", "-up", "33554432", "-down", "33554432",
				"-to", w.h2.AddrPort6(transferPort).String())
			c.tried(t, e, err, 1)
			s := g1.status()
			missing := conns + 1 - (s.FlowsTotal[w.via] - before)
			require.LessOrEqual(t, missing, w.late()-late, "all carried, but those that found a gateway late: %+v", s)
			w.quiet(t)
			for _, g := range []*gw{g1, g2} {
				t.Logf("%s lost %d lines", g.h.Name, g.status().LogDropped)
				if sink.lost {
					require.Positive(t, g.status().LogDropped, g.h.Name)
				}
			}
			if reader != nil { // now it reads, and gets what has waited
				held, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCINQ)
				require.NoError(t, err)
				require.Greater(t, held, 60_000, "the pipe was full")
				last := fmt.Sprintf("flow_id=%d ", conns-missing)
				require.Contains(t, readUntil(reader, last, time.Minute), last)
			}
			g1.stop()
			g2.stop()
		})
	}
}

// readUntil reads until a line with text has come.
func readUntil(f *os.File, text string, patience time.Duration) (all string) {
	_ = f.SetReadDeadline(time.Now().Add(patience))
	_ = unix.SetNonblock(int(f.Fd()), true) // Fd may have made it blocking
	buf := make([]byte, 64<<10)
	for !strings.Contains(all, text) {
		n, err := f.Read(buf)
		all = tail(all, 1<<12) + string(buf[:n])
		if err != nil {
			return all + err.Error()
		}
	}
	return all
}

func fullDisk(t *testing.T) (log, _ *os.File) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	return f, nil
}

func smallDisk(t *testing.T) (log, _ *os.File) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	return f, nil
}

func deafReader(t *testing.T) (log, reader *os.File) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("its log: %s", readUntil(r, "nothing", time.Second))
		}
		_ = r.Close()
	})
	return w, r
}

func goneReader(t *testing.T) (log, _ *os.File) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	return w, nil
}
