package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/gateway/report"
)

// serveFake answers as a daemon without a datapath until the test ends.
func serveFake(t *testing.T, kind string) (d *fakeDaemon, cfg config.Config) {
	cfg = config.Config{Admin: t.TempDir() + "/other.sock", StateDir: t.TempDir()}.WithDefaults()
	server, err := admin.Listen(cfg, "9.9.9", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	d = &fakeDaemon{kind: kind, end: cancel, feed: report.NewFeed()}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, d, d) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return d, cfg
}

// TestSwitchOfTheMachine: the kill switch without flags reaches every gateway, whatever
// its configuration, and fails when it missed one.
func TestSwitchOfTheMachine(t *testing.T) {
	d, cfg := serveFake(t, "")
	_, broken := serveFake(t, "broken")
	file := admin.NewOffFlag(t.TempDir())
	service := t.TempDir() + "/smcgw.yaml"
	require.NoError(t, os.WriteFile(service, []byte("admin: "+service+".sock"), 0o600))
	run := func(found []machine.Found, args ...string) (status int, out, errs string) {
		var stdout, stderr bytes.Buffer
		e := &env{
			stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }, machineOff: file, service: service,
			gateways: func(context.Context) ([]machine.Found, error) { return found, nil },
		}
		return run(t.Context(), e, args), stdout.String(), stderr.String()
	}
	one := machine.Found{PID: 41, Here: true, Path: cfg.Admin, Socket: cfg.Admin}
	status, out, errs := run([]machine.Found{one}, "off")
	require.Zero(t, status, errs)
	require.Equal(t, "gateway of process 41 at "+cfg.Admin+": new connections stay native; carried ones go on\n", out)
	require.Equal(t, report.ModeOff, d.Status().Mode)
	require.True(t, file.IsSet())

	status, out, errs = run([]machine.Found{one}, "on")
	require.Zero(t, status, errs)
	require.Contains(t, out, "new connections are offered")
	require.Equal(t, report.ModeEnforce, d.Status().Mode)
	require.False(t, file.IsSet())

	elsewhere := machine.Found{PID: 43, Namespace: "net:[7]"}
	status, out, errs = run([]machine.Found{one, {PID: 42, Here: true, Path: broken.Admin, Socket: broken.Admin}, elsewhere}, "off", "--now")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "gateway of process 41")
	require.Contains(t, errs, "gateway of process 42 at "+broken.Admin+": answer of the daemon: switch datapath: broken as asked")
	require.Contains(t, errs, "gateway of process 43 in network namespace net:[7] was not told")
	require.Equal(t, report.ModeOff, d.Status().Mode)

	status, out, _ = run(nil, "off")
	require.Zero(t, status)
	require.Equal(t, "no daemon answers; "+file.Path()+" keeps all that are started off\n", out)
	status, out, _ = run(nil, "on")
	require.Zero(t, status)
	require.Equal(t, "no daemon answers; "+file.Path()+" is gone\n", out)

	// The daemon's user finds no gateway, and tells its own.
	require.NoError(t, os.WriteFile(service, []byte("admin: "+cfg.Admin), 0o600))
	for _, command := range [][]string{{"on"}, {"off"}, {"off", "--now"}} {
		status, out, errs = run(nil, command...)
		require.Zero(t, status, errs)
		require.NotContains(t, out, "no daemon answers")
		require.Equal(t, command[0] == "off", d.Status().Mode == report.ModeOff)
	}
	require.NoError(t, os.WriteFile(service, []byte("admin: "+broken.Admin), 0o600))
	status, _, errs = run(nil, "off")
	require.Equal(t, exitFailed, status)
	require.Contains(t, errs, "broken as asked")
}

// TestSwitchPastAHungGateway: gateways that do not answer keep the order from no other, and
// each has its own time for it.
func TestSwitchPastAHungGateway(t *testing.T) {
	var found []machine.Found
	var daemons []*fakeDaemon
	var paths []string
	for range 3 {
		hung, err := net.Listen("unix", t.TempDir()+"/hung.sock") // connections are made, and no answer comes
		require.NoError(t, err)
		defer hung.Close()
		d, cfg := serveFake(t, "")
		daemons, paths = append(daemons, d), append(paths, hung.Addr().String(), cfg.Admin)
	}
	for i, path := range paths {
		found = append(found, machine.Found{PID: 40 + i, Here: true, Path: path, Socket: path})
	}
	var stdout, stderr bytes.Buffer
	e := &env{
		stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }, machineOff: admin.NewOffFlag(t.TempDir()),
		gateways: func(context.Context) ([]machine.Found, error) { return found, nil },
	}
	begun := time.Now()
	require.Equal(t, exitFailed, run(t.Context(), e, []string{"off", "--now"}))
	require.Less(t, time.Since(begun), 3*switchPatience, "they wait at the same time")
	for _, d := range daemons {
		require.Equal(t, report.ModeOff, d.Status().Mode)
	}
	told, missed := strings.Split(stdout.String(), "\n"), strings.Split(stderr.String(), "\n")
	for i := range daemons {
		require.Contains(t, told[i], found[2*i+1].String())
		require.Contains(t, missed[i], found[2*i].String())
		require.Contains(t, missed[i], admin.ErrDaemonUnreachable.Error())
	}
}

// TestSwitchPastAHungDisk: a disk or server that does not take the file keeps the order from no gateway.
func TestSwitchPastAHungDisk(t *testing.T) {
	d, cfg := serveFake(t, "")
	file := admin.NewOffFlag(t.TempDir())
	require.NoError(t, unix.Mkfifo(file.Path(), 0o600)) // which is not opened before it is read
	var stdout, stderr bytes.Buffer
	e := &env{
		stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }, machineOff: file,
		gateways: func(context.Context) ([]machine.Found, error) {
			return []machine.Found{{PID: 41, Here: true, Path: cfg.Admin, Socket: cfg.Admin}}, nil
		},
	}
	require.Equal(t, exitFailed, run(t.Context(), e, []string{"off"}))
	require.Equal(t, report.ModeOff, d.Status().Mode)
	require.Contains(t, stderr.String(), file.Path()+": its disk or server does not answer")
	_, err := os.ReadFile(file.Path())
	require.NoError(t, err)

	e.machineOff, e.service = admin.NewOffFlag(t.TempDir()), t.TempDir()+"/smcgw.yaml"
	require.NoError(t, unix.Mkfifo(e.service, 0o600)) // nor is that one
	e.gateways = func(context.Context) ([]machine.Found, error) { return nil, nil }
	require.Equal(t, exitFailed, run(t.Context(), e, []string{"off"}))
	require.True(t, e.machineOff.IsSet())
	require.Contains(t, stderr.String(), e.service+": its disk or server does not answer")
	end, err := os.OpenFile(e.service, os.O_WRONLY, 0) // who waits for it goes
	require.NoError(t, err)
	require.NoError(t, end.Close())
}

// TestCleanupSays: it names what it removes, and a gateway that it has missed.
func TestCleanupSays(t *testing.T) {
	dir := t.TempDir()
	run := func(found []machine.Found, args ...string) (status int, out, errs string) {
		var stdout, stderr bytes.Buffer
		e := &env{
			stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" },
			gateways: func(context.Context) ([]machine.Found, error) { return found, nil },
		}
		return run(t.Context(), e, append([]string{"cleanup"}, args...)), stdout.String(), stderr.String()
	}
	file := dir + "/smcgw.yaml"
	require.NoError(t, os.WriteFile(file, []byte("{ admin: "+dir+"/s, shm_dir: "+dir+"/shm, in_process: { socket: "+dir+"/p } }"), 0o600))
	require.NoError(t, os.Mkdir(dir+"/shm", 0o700))
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	status, out, errs := run(nil, "-c", file)
	require.Zero(t, status, errs)
	require.Equal(t, "removed "+dir+"/s\n", out)
	status, out, _ = run(nil, "-c", file)
	require.Zero(t, status)
	require.Equal(t, "nothing is left of a gateway at "+dir+"/s and in "+dir+"/shm; of one with another configuration: -c FILE\n", out)

	here := []machine.Found{{PID: 41, Here: true, Path: "/run/other/admin.sock"}, {PID: 42, Namespace: "net:[7]"}}
	status, _, errs = run(here, "-c", file)
	require.Zero(t, status, errs)
	e := &env{gateways: func(context.Context) ([]machine.Found, error) { return here, nil }}
	err = e.othersHere(t.Context())
	require.ErrorIs(t, err, admin.ErrDaemonAlive)
	require.EqualError(t, err, "a daemon is running: gateway of process 41 at /run/other/admin.sock; nothing of it is removed")
}
