package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// lab is a guest and the host at the other end of its cable, shared by the tests of one kernel. In a test that itself
// runs in the guest, inside takes the place of both.
type lab struct {
	series guest.Series
	host   *testnet.Tapped
	guest  *guest.Guest
	inside *inside
}

// starter starts programs of rdma-core.
type starter interface {
	Start(name string, args ...string) (*remote.Process, error)
}

func (l *lab) programs() starter {
	if l.inside != nil {
		return l.inside
	}
	return l.guest
}

// labs holds what has been started until closeLabs.
var labs struct {
	sync.Mutex

	all map[guest.Series]*lab
	err map[guest.Series]error
}

// thorough tells whether to run everything, not just a sample.
func thorough() bool { return os.Getenv("SMCGW_INTEROP") == "all" }

// scaled returns a number of iterations: n, or a tenth of it for the sample.
func scaled(n int) int {
	if thorough() {
		return n
	}
	return max(n/10, 1)
}

// eachKernel runs a test with every kernel that is to be tested, and captures its traffic. The first test that needs
// a guest starts it.
func eachKernel(t *testing.T, f func(t *testing.T, l *lab)) {
	onKernels(t, func(t *testing.T, l *lab) {
		l.capture(t)
		f(t, l)
	})
}

func onKernels(t *testing.T, f func(t *testing.T, l *lab)) {
	testnet.Require(t, "vm", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	for _, k := range kernels() {
		t.Run("linux-"+string(k), func(t *testing.T) {
			l, err := labOf(k)
			require.NoError(t, err)
			console := len(l.guest.Console())
			t.Cleanup(func() {
				if log := l.guest.Console(); t.Failed() && len(log) > console {
					t.Logf("console of the guest:\n%s", log[console:])
				}
			})
			f(t, l)
		})
	}
}

// kernels returns the kernels to test with.
func kernels() []guest.Series {
	if thorough() {
		return []guest.Series{guest.Linux612, guest.Linux61}
	}
	return []guest.Series{guest.Linux612}
}

func labOf(k guest.Series) (*lab, error) {
	labs.Lock()
	defer labs.Unlock()
	if labs.all == nil {
		labs.all, labs.err = map[guest.Series]*lab{}, map[guest.Series]error{}
	}
	l, err := labs.all[k], labs.err[k]
	if l != nil && l.guest.Ended() {
		// Its kernel has crashed in an earlier test; other tests need not fail for that.
		err = l.close()
		l = nil
	}
	if l != nil || err != nil {
		return l, err
	}
	labs.all[k], labs.err[k] = startLab(k)
	return labs.all[k], labs.err[k]
}

func startLab(k guest.Series) (*lab, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	img, err := guest.Build(ctx, k)
	if err != nil {
		return nil, err
	}
	host, err := testnet.NewTapped(1500)
	if err != nil {
		return nil, err
	}
	g, err := guest.Boot(ctx, host, img, guest.Config{})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return &lab{series: k, host: host, guest: g}, nil
}

func (l *lab) close() error { return errors.Join(l.guest.Close(), l.host.Close()) }

func closeLabs() {
	labs.Lock()
	defer labs.Unlock()
	for _, l := range labs.all {
		if l == nil {
			continue
		}
		if err := l.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	labs.all = nil
}

// start starts a program in the guest. It is killed at the end of the test.
func (l *lab) start(t *testing.T, args ...string) *remote.Process {
	t.Helper()
	return startIn(t, l.programs(), args...)
}

// startIn starts a program in a guest. It is killed at the end of the test.
func startIn(t *testing.T, g starter, args ...string) *remote.Process {
	t.Helper()
	p, err := g.Start(args[0], args[1:]...)
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s", p.Name, p.Output())
		}
	})
	return p
}

// startDatagram starts a program that uses datagram rsockets.
func (l *lab) startDatagram(t *testing.T, args ...string) *remote.Process {
	t.Helper()
	// LD_PRELOAD already has a library, which makes output line-buffered.
	return l.start(t, append([]string{"sh", "-c", `LD_PRELOAD=$LD_PRELOAD:` + guest.DatagramShim + ` exec "$@"`, "sh"}, args...)...)
}

// run runs a program in the guest, which must succeed, and returns its output.
func (l *lab) run(t *testing.T, args ...string) string {
	t.Helper()
	p, err := l.programs().Start(args[0], args[1:]...)
	require.NoError(t, err)
	defer p.Kill()
	require.NoError(t, p.Wait(patience(t, time.Minute)))
	return p.Output()
}

// patienceAfter is patience for cleaning up, when the test's own context has ended.
func patienceAfter(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func patience(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
