package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// testAdmin is a running admin server on a socket of its own.
type testAdmin struct {
	cfg    config.Config
	ctl    *fakeControl
	client *Client
	server *Server
	stop   func()
	beside bool // another server runs: what is left is its
}

func startAdmin(t *testing.T, edit func(*config.Config)) *testAdmin {
	t.Helper()
	return startAdminWith(t, edit, func(*Server) {})
}

// startAdminWith is startAdmin with a server to which something is added.
func startAdminWith(t *testing.T, edit func(*config.Config), add func(*Server)) *testAdmin {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	dir := t.TempDir()
	a := &testAdmin{ctl: &fakeControl{feed: report.NewFeed(), beats: true}, cfg: config.Config{Admin: dir + "/run/a.sock", StateDir: dir + "/state"}}
	if edit != nil {
		edit(&a.cfg)
	}
	a.cfg = a.cfg.WithDefaults()
	var err error
	a.server, err = Listen(a.cfg, "1.2.3", nil)
	require.NoError(t, err)
	a.server.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the metrics") })
	add(a.server)
	a.client = NewClient(a.cfg.Admin)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.server.Serve(ctx, a.ctl, a.ctl) }()
	require.Eventually(t, func() bool { return len(a.ctl.switched()) == 1 }, 30*time.Second, time.Millisecond)
	stopped := false
	a.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-done)
		a.client.Close()
		if !a.beside {
			goleak.VerifyNone(t, leaks)
		}
	}
	t.Cleanup(a.stop)
	return a
}

func TestAdminNouns(t *testing.T) {
	a := startAdmin(t, nil)
	a.ctl.status = sampleStatus()
	ctx := t.Context()

	st, err := a.client.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, sampleStatus(), st)

	list, err := a.client.Conns(ctx, report.ConnQuery{All: true, Details: true})
	require.NoError(t, err)
	require.Equal(t, sampleConns(), list.Conns)
	list, err = a.client.Conns(ctx, report.ConnQuery{All: true, Filter: report.ConnFilter{Port: 80}})
	require.NoError(t, err)
	require.Equal(t, sampleConns()[1:2], list.Conns)
	list, err = a.client.Conns(ctx, report.ConnQuery{Native: true})
	require.NoError(t, err)
	require.Equal(t, sampleConns()[1:2], list.Conns)
	list, err = a.client.Conns(ctx, report.ConnQuery{Closed: true})
	require.NoError(t, err)
	require.Equal(t, sampleConns()[2:3], list.Conns)
	list, err = a.client.Conns(ctx, report.ConnQuery{})
	require.NoError(t, err)
	require.Len(t, list.Conns, 1)
	require.Nil(t, list.Conns[0].Pair)
	list, err = a.client.Conns(ctx, report.ConnQuery{Filter: report.ConnFilter{Port: 1}})
	require.NoError(t, err)
	require.NotNil(t, list.Conns)
	require.Empty(t, list.Conns)

	peers, err := a.client.Peers(ctx)
	require.NoError(t, err)
	require.Equal(t, samplePeers(), peers.Peers)

	devices, err := a.client.Devices(ctx)
	require.NoError(t, err)
	require.Equal(t, sampleDeviceList(), devices)

	policy, err := a.client.Policy(ctx)
	require.NoError(t, err)
	require.Equal(t, samplePolicy(), policy)

	v, err := a.client.Version(ctx)
	require.NoError(t, err)
	require.Equal(t, "1.2.3", v.Version)
	require.NotEmpty(t, v.Kernel)
}

func TestAnEmptyStatusHasItsKeys(t *testing.T) {
	a := startAdmin(t, nil)
	st, err := a.client.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, report.Status{
		Schema: statusSchema, Version: "1.2.3",
		Flows:          map[report.Carrier]int{report.CarrierShm: 0, report.CarrierHW: 0, report.CarrierSoft: 0, report.CarrierRelay: 0},
		FlowsTotal:     map[report.Carrier]uint64{report.CarrierShm: 0, report.CarrierHW: 0, report.CarrierSoft: 0, report.CarrierRelay: 0},
		FallbacksTotal: map[string]uint64{},
		BytesTotal:     map[report.Carrier]report.ByteCount{report.CarrierShm: {}, report.CarrierHW: {}, report.CarrierSoft: {}, report.CarrierRelay: {}},
		UDP: report.ProtoStats{
			Flows:  map[report.Carrier]report.FlowCount{report.CarrierShm: {}, report.CarrierHW: {}, report.CarrierSoft: {}},
			Bytes:  map[report.Carrier]report.ByteCount{report.CarrierShm: {}, report.CarrierHW: {}, report.CarrierSoft: {}},
			Native: map[string]uint64{},
		},
	}, st)
}

func TestAdminVerbs(t *testing.T) {
	a := startAdmin(t, nil)
	flag := NewOffFlag(a.cfg.StateDir)
	require.False(t, flag.IsSet())
	for _, off := range []bool{true, true, false, false} {
		res, err := a.client.SetOff(t.Context(), off)
		require.NoError(t, err)
		require.NotEmpty(t, res.Message)
		require.Equal(t, off, flag.IsSet())
	}
	// The watch of the file may repeat a switch.
	require.Equal(t, []bool{false, true, false}, slices.Compact(a.ctl.switched()))
	res, err := a.client.FlushPeers(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, res.Count)

	q := DemoteQuery{IDs: []uint64{3, 1 << 40}, Carrier: report.CarrierShm}
	res, err = a.client.Demote(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, 7, res.Count)
	require.Equal(t, []DemoteQuery{q}, a.ctl.demoted)
	for _, q := range []DemoteQuery{{}, {All: true, IDs: []uint64{1}}, {Carrier: report.CarrierRelay}, {Carrier: "rdma-x"}} {
		_, err = a.client.Demote(t.Context(), q)
		require.ErrorContains(t, err, "answer of the daemon: ")
	}
	require.Len(t, a.ctl.demoted, 1)

	p, err := a.client.Policy(t.Context())
	require.NoError(t, err)
	require.Equal(t, samplePolicy(), p)

	a.ctl.fail = errFake
	_, err = a.client.FlushPeers(t.Context())
	require.EqualError(t, err, "answer of the daemon: "+errFake.Error())
	_, err = a.client.SetOff(t.Context(), true)
	require.EqualError(t, err, "answer of the daemon: switch datapath: "+errFake.Error())
	require.True(t, flag.IsSet(), "a daemon that cannot switch must come back switched off")
}

func TestAFlagSetPastTheDaemonIsSeen(t *testing.T) {
	a := startAdmin(t, nil)
	require.NoError(t, NewOffFlag(a.cfg.StateDir).Set(true))
	require.Eventually(t, func() bool { return len(a.ctl.switched()) == 2 }, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, []bool{false, true}, slices.Compact(a.ctl.switched()))
}

func TestOffFlagErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, NewOffFlag(file+"/sub").Set(true), "make state directory")
	require.NoError(t, NewOffFlag(file+"-none").Set(false))
	require.NoError(t, os.MkdirAll(filepath.Join(file+"-dir", "off", "x"), 0o700))
	require.ErrorContains(t, NewOffFlag(file+"-dir").Set(false), "remove off flag")
	require.ErrorContains(t, NewOffFlag(file+"-dir").Set(true), "write off flag")
}

// TestOffFlagOnAFullDisk: the file is the switch, whether or not there was room for its text; and a switch that is not
// there is off on a disk that takes no changes, too.
func TestOffFlagOnAFullDisk(t *testing.T) {
	testnet.Require(t, "root")
	dir, done := t.TempDir(), make(chan error)
	flag := OffFlag{path: dir + "/off", machine: dir + "/off"}
	go func() { // the thread ends with the goroutine, its mounts with the thread
		runtime.LockOSThread()
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k")
		}
		if err == nil {
			err = os.WriteFile(dir+"/full", make([]byte, 4096), 0o600)
		}
		if err = errors.Join(err, flag.Set(true)); err == nil && !flag.IsSet() {
			err = errors.New("not off")
		}
		err = errors.Join(err, flag.Set(false), unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""), flag.Set(false))
		done <- errors.Join(err, unix.Unmount(dir, 0))
	}()
	require.NoError(t, <-done)
}

// rawGet talks to the admin socket without the client.
func rawGet(t *testing.T, a *testAdmin, method, path string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, body)
	require.NoError(t, err)
	resp, err := a.client.http.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestAdminRefusesWhatItDoesNotKnow(t *testing.T) {
	a := startAdmin(t, nil)
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/v1/nothing", 404},
		{"POST", "/v1/status", 405},
		{"GET", "/v1/off", 405},
		{"DELETE", "/v1/peers", 405},
		{"GET", "/v1/conns?all=perhaps", 400},
		{"GET", "/v1/conns?filter=%7B%22port%22:-1%7D", 400},
		{"GET", "/v1/watch?filter=port", 400},
		{"POST", "/v1/watch", 405},
		{"GET", "/metrics", 200},
	} {
		require.Equal(t, c.code, rawGet(t, a, c.method, c.path, nil).StatusCode, "%s %s", c.method, c.path)
	}
	require.NotContains(t, a.ctl.switched(), true)
	req := rawGet(t, a, "GET", "/v1/status?"+strings.Repeat("x", 3*adminMaxHeader), nil)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, req.StatusCode)
}

func TestAdminSocketModeAndRemoval(t *testing.T) {
	a := startAdmin(t, nil)
	fi, err := os.Stat(a.cfg.Admin)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), fi.Mode().Perm())
	a.stop()
	require.NoFileExists(t, a.cfg.Admin)
}

func TestASecondDaemonIsRefused(t *testing.T) {
	a := startAdmin(t, nil)
	_, err := Listen(a.cfg, "x", nil)
	require.ErrorIs(t, err, errAdminInUse)
	_, err = a.client.Status(t.Context())
	require.NoError(t, err, "the first one must be unharmed")
	_, err = Cleanup(a.cfg)
	require.ErrorIs(t, err, ErrDaemonAlive)
	a.stop()
	s, err := Listen(a.cfg, "x", nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}

func TestAForeignListenerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	_, err = listenAdminSocket(path, false)
	require.ErrorIs(t, err, errAdminInUse)
}

// TestAnotherProgramIsNotAwaited: a program that cannot be a dying gateway is named at once, and keeps its socket.
func TestAnotherProgramIsNotAwaited(t *testing.T) {
	own, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(own, dir+"/other"))
	cmd := exec.Command(dir + "/other")
	cmd.Env = append(os.Environ(), "LISTEN="+dir+"/s")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, cmd.Wait())
	}()
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", dir+"/s")
		if err == nil {
			err = c.Close()
		}
		return err == nil
	}, 30*time.Second, time.Millisecond)
	begun := time.Now()
	_, err = Cleanup(config.Config{Admin: dir + "/s"}.WithDefaults())
	require.ErrorContains(t, err, fmt.Sprintf("process %d (other) listens on %s/s and is no gateway", cmd.Process.Pid, dir))
	require.Less(t, time.Since(begun), deathPatience)
	require.FileExists(t, dir+"/s")
}

// TestADyingListenerIsReplaced: a process that has been killed may have released its lock, and
// still listen.
func TestADyingListenerIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = l.Accept() // until it has been looked at
		_ = l.Close()
	}()
	s, err := listenAdminSocket(path, false)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	<-gone
}

func TestADeadSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	s, err := listenAdminSocket(path, false)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestAFileInTheWayIsNotRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := listenAdminSocket(path, false)
	require.ErrorContains(t, err, "exists and is not a socket")
	require.FileExists(t, path)
	// The lock was dropped again.
	require.NoError(t, os.Remove(path))
	s, err := listenAdminSocket(path, false)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestClientWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	c := NewClient(dir + "/none")
	_, err := c.Status(t.Context())
	require.ErrorIs(t, err, ErrDaemonUnreachable)
	require.ErrorContains(t, err, "daemon not reachable at "+dir+"/none: connect: no such file or directory")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Status(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// TestClientDistrustsTheDaemon: answers that are not ours are errors.
func TestClientDistrustsTheDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	answers := map[string]string{
		"/v1/status": `{"schema":"smcgw.status/v2"}`,
		"/v1/peers":  `{"schema":"smcgw.peers/v1","peers":7}`,
		"/v1/conns":  `no json`,
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/version" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		_, _ = w.Write([]byte(answers[r.URL.Path]))
	}), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	c := NewClient(path)
	defer c.Close()
	_, err = c.Status(t.Context())
	require.ErrorContains(t, err, `schema "smcgw.status/v2" instead of "smcgw.status/v1"`)
	_, err = c.Peers(t.Context())
	require.ErrorContains(t, err, "read answer of the daemon")
	_, err = c.Conns(t.Context(), report.ConnQuery{})
	require.ErrorContains(t, err, "read answer of the daemon")
	_, err = c.Version(t.Context())
	require.EqualError(t, err, "answer of the daemon: I'm a teapot")
}

func TestMetricsListener(t *testing.T) {
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := probe.Addr().String()
	require.NoError(t, probe.Close())
	a := startAdmin(t, func(c *config.Config) { c.Metrics.Listen = addr })
	tcp := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, code := range map[string]int{"/metrics": 200, "/healthz": 200, "/readyz": 200, "/": 404, "/v1/set": 404, "/v1/status": 404, "/v1/off": 404} {
		resp, err := tcp.Get("http://" + addr + path)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, code, resp.StatusCode, path)
	}
	other := a.cfg
	other.Admin += "2"
	_, err = Listen(other, "x", nil)
	require.ErrorContains(t, err, "listen for metrics")
	require.ErrorContains(t, err, "metrics.listen in the configuration names another")
	require.NoFileExists(t, other.Admin)
}

func TestAccess(t *testing.T) {
	own := uint32(os.Geteuid())
	require.Equal(t, accessWrite, peerCred{uid: 0}.access(5))
	require.Equal(t, accessWrite, peerCred{uid: own}.access(5))
	require.Equal(t, accessRead, peerCred{uid: own + 1, groups: []uint32{4, 5}}.access(5))
	require.Equal(t, accessNone, peerCred{uid: own + 1, groups: []uint32{4}}.access(5))
}

// A switch that is in force and cannot be kept says both.
func TestOffWithoutRoomForTheFlag(t *testing.T) {
	a := startAdmin(t, func(c *config.Config) { c.StateDir = "/proc/none" })
	_, err := a.client.SetOff(t.Context(), true)
	require.ErrorContains(t, err, "new connections are native from now on, but not after a restart of the gateway: make state directory")
	switched := a.ctl.switched()
	require.True(t, switched[len(switched)-1])
}

// Every gateway obeys the switch of the machine, and on says that this keeps it off.
func TestSwitchOfTheMachineIsObeyed(t *testing.T) {
	flag := OffFlag{path: t.TempDir() + "/off", machine: t.TempDir() + "/off"}
	require.NoError(t, OffFlag{path: flag.machine}.Set(true))
	require.True(t, flag.IsSet())
	ctl := &fakeControl{}
	s := &Server{off: flag, ctl: ctl, log: slog.New(slog.DiscardHandler)}
	w := httptest.NewRecorder()
	s.postOff(w, false, false)
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.Contains(t, w.Body.String(), "all gateways of this machine are off")
	require.Equal(t, []bool{true}, ctl.switched())
	require.NoError(t, OffFlag{path: flag.machine}.Set(false))
	w = httptest.NewRecorder()
	s.postOff(w, false, false)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, []bool{true, false}, ctl.switched())
}

// TestAdminListsAtOnce: connections that wait for their readers take memory, so there are
// few such lists at a time. Another one waits, is refused with when to come back, and is
// given as soon as a reader has gone. What is small is answered all the while.
func TestAdminListsAtOnce(t *testing.T) {
	a := startAdminWith(t, nil, func(s *Server) { s.lists = newGate(adminMaxDocuments, adminMaxDocumentReaders, time.Millisecond) })
	a.ctl.more = 10_000 // more than a socket has room for
	list := func() (*http.Response, error) {
		c, err := net.Dial("unix", a.cfg.Admin)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, "GET /v1/conns HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
		if err == nil && resp.StatusCode == http.StatusOK {
			resp.Body = c
		}
		return resp, err
	}
	var under []*http.Response
	for range adminMaxDocuments {
		resp, err := list()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		under = append(under, resp)
	}
	resp, err := list()
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	_, err = a.client.Peers(t.Context())
	require.ErrorContains(t, err, "too many clients ask for this at once: ask again")
	_, err = a.client.Status(t.Context())
	require.NoError(t, err)
	require.NoError(t, under[0].Body.Close())
	require.Eventually(t, func() bool {
		_, err := a.client.Conns(t.Context(), report.ConnQuery{})
		return err == nil
	}, 30*time.Second, time.Millisecond)
}

// flagServer has its off flag in files of the test.
func flagServer(t *testing.T) (*Server, *fakeControl) {
	t.Helper()
	ctl := &fakeControl{}
	return &Server{off: OffFlag{path: t.TempDir() + "/off", machine: t.TempDir() + "/off"}, ctl: ctl, log: slog.New(slog.DiscardHandler)}, ctl
}

// The kill switch works without its file, whose server does not answer. It is not taken back then: the file may be there.
func TestOffWhileTheFlagIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctl := flagServer(t)
		answer := make(chan struct{})
		go func() {
			_, _ = process.Through(t.Context(), &s.files, func() (struct{}, error) { <-answer; return struct{}{}, nil })
		}()
		synctest.Wait()
		w := httptest.NewRecorder()
		s.postOff(w, true, false)
		require.Contains(t, w.Body.String(), "not after a restart of the gateway: "+errFlagLate.Error())
		require.Equal(t, []bool{true}, ctl.switched())
		w = httptest.NewRecorder()
		s.postOff(w, false, false)
		require.Contains(t, w.Body.String(), errFlagLate.Error())
		require.Equal(t, []bool{true}, ctl.switched())
		require.ErrorIs(t, s.lasts(), errFlagLate)
		close(answer)
		synctest.Wait()
		w = httptest.NewRecorder()
		s.postOff(w, false, false)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, []bool{true, false}, ctl.switched())
	})
}

// A flag that cannot be known changes nothing, and is set at the start.
func TestAFlagThatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctl := flagServer(t)
		disk := func(fails bool) {
			require.NoError(t, os.RemoveAll(s.off.path))
			if fails {
				require.NoError(t, os.Symlink("off", s.off.path)) // ELOOP
			}
			time.Sleep(2 * offPoll)
			synctest.Wait()
		}
		require.NoError(t, os.Symlink("off", s.off.path))
		errOnce := errFake
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.watchOff(ctx, func(off bool) error {
			defer func() { errOnce = nil }()
			return errors.Join(ctl.SetOff(off), errOnce)
		})
		synctest.Wait()
		require.Equal(t, []bool{true}, ctl.switched())
		disk(true)
		require.Equal(t, []bool{true, true}, ctl.switched(), "what failed is done again")
		disk(false)
		disk(true)
		require.Equal(t, []bool{true, true, false}, ctl.switched())
		disk(false)
		require.NoError(t, s.off.Set(true))
		time.Sleep(2 * offPoll)
		synctest.Wait()
		disk(true)
		require.Equal(t, []bool{true, true, false, true}, ctl.switched())
		require.NoError(t, os.Remove(s.off.path))
	})
}
