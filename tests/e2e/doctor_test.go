package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/sockmap"
	"github.com/smcgw/smcgw/lab/testnet"
)

// What tests read of JSON documents, as scripts do.
type (
	doctorReport struct {
		Lines []doctorLine
	}
	doctorLine struct{ Check, State, Text string }
	pingReport struct {
		Tries           []pingTry
		Carried, Failed int
	}
	pingTry struct {
		Stage, Reason, Error string
		Carrier              report.Carrier
		MTU                  int
	}
	bugreportManifest struct {
		Entries []struct{ Name, Error string }
	}
)

// says runs a verb with --json on a host and returns its document and exit status. before, if given, is a program
// that executes smcgw.
func says[T any](w *world, h *testnet.Host, before []string, verb ...string) (doc T, status int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), slowed(2*time.Minute))
	defer cancel()
	args := append(append(append([]string{}, before...), binary), append(verb, "--json", "--socket", filepath.Join(w.dir, h.Name+".sock"))...)
	var out, errs bytes.Buffer
	cmd := h.Command(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err, status = nil, exit.ExitCode()
	}
	require.NoError(w.t, err, "%s", &errs)
	require.NoError(w.t, json.Unmarshal(out.Bytes(), &doc), "%v: %s%s", verb, &out, &errs)
	return doc, status
}

// found requires a line in a report.
func found(t *testing.T, r doctorReport, check, state, text string) {
	t.Helper()
	for _, l := range r.Lines {
		if l.Check == check && l.State == state && strings.Contains(l.Text, text) {
			return
		}
	}
	require.Failf(t, "no such line", "%s %s %q in %+v", check, state, text, r.Lines)
}

// failures returns the checks that failed.
func failures(r doctorReport) (list []string) {
	for _, l := range r.Lines {
		if l.State == "failure" {
			list = append(list, l.Check)
		}
	}
	return list
}

// TestDoctor checks that doctor names what a host lacks before a gateway runs there, and changes nothing: it leaves
// no device and no rule.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	g := w.configure(w.h1, settings{})
	delete(w.gateways, w.h1)
	look := func(before ...string) (doctorReport, int) {
		return says[doctorReport](w, w.h1, before, "doctor", "-c", g.config)
	}
	links := func() string {
		out, err := w.h1.Run(t.Context(), "sh", "-c", "ip -o link | cut -d' ' -f2; ip rule; ip -6 rule")
		require.NoError(t, err)
		return out
	}
	before := links()
	r, status := look()
	require.Empty(t, failures(r))
	require.Zero(t, status)
	found(t, r, "kernel", "ok", "that the programs need")
	found(t, r, "tun", "ok", "can be opened")
	found(t, r, "devices", "ok", "eth0: MTU 1500")
	found(t, r, "hooks", "ok", "tcx ingress of eth0 ")
	found(t, r, "daemon", "warning", "no daemon answers")
	require.Equal(t, before, links())

	r, status = look("unshare", "--mount", "sh", "-ec", `mount -t tmpfs none /dev; exec "$0" "$@"`)
	require.Equal(t, []string{"tun"}, failures(r))
	require.Equal(t, 4, status)
	found(t, r, "tun", "failure", "/dev/net/tun cannot be opened: no such file or directory")

	for name, flag := range map[string]string{"CAP_BPF, ": "-bpf", "CAP_PERFMON, ": "-perfmon", "CAP_NET_ADMIN, ": "-net_admin"} {
		r, status = look("setpriv", "--bounding-set", flag)
		require.Contains(t, failures(r), "capabilities")
		require.Equal(t, 4, status)
		found(t, r, "capabilities", "failure", "this shell has no "+name)
	}
	r, _ = look("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
	found(t, r, "kernel", "warning", "could not be looked at")
	found(t, r, "capabilities", "failure", "CAP_BPF")

	r, status = look("prlimit", "--memlock=65536:65536", "--nofile=320:320", "--", "setpriv", "--bounding-set", "-ipc_lock,-sys_resource")
	require.Equal(t, []string{"descriptors"}, failures(r))
	require.Equal(t, 4, status)
	found(t, r, "memlock", "ok", "may lock 64 KiB of memory; only RDMA adapters need more")

	r, status = look("sh", "-ec", `sysctl -qw net.ipv4.tcp_timestamps=0; exec "$0" "$@"`)
	require.Equal(t, []string{"sysctls"}, failures(r))
	require.Equal(t, 4, status)
}

// TestDoctorHookFull checks that doctor reports a hook without a free place, by which a start would fail.
func TestDoctorHookFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	full := group(t)
	for range inspect.HookRoom {
		p, err := sockmap.Watch(full.Path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
	}
	g := w.configure(w.h1, settings{Extra: "cgroup_path: " + full.Path + "\n"})
	delete(w.gateways, w.h1)
	r, status := says[doctorReport](w, w.h1, nil, "doctor", "-c", g.config)
	require.Equal(t, []string{"hooks"}, failures(r))
	require.Equal(t, 4, status)
	found(t, r, "hooks", "failure", "sockops of "+full.Path+": 64 programs are attached")
	out, err := w.h1.Command(t.Context(), binary, "up", "-c", g.config).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "64 programs are attached to "+full.Path)
}

// TestDoctorFirewall checks that doctor recognizes firewalld by its process and by its rules.
func TestDoctorFirewall(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"firewalld", "dbus-daemon"} {
		testnet.Require(t, name)
	}
	w := newWorld(t, testnet.Config{})
	(&hostCell{world: w}).firewalld(w.h1)
	r, _ := says[doctorReport](w, w.h1, nil, "doctor")
	found(t, r, "agents", "ok", "firewalld (process firewalld, rules firewalld)")
	r, _ = says[doctorReport](w, w.h2, nil, "doctor")
	found(t, r, "agents", "ok", "no firewall")
}

// TestDoctorWithDaemons checks what doctor reports about a running daemon and a live peer.
func TestDoctorWithDaemons(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.serve(w.h3)
	g1, _ := w.upBoth(settings{})
	// On a busy machine a gateway may be late: try a few times.
	look := func(status int, peer, text string) (r doctorReport) {
		t.Helper()
		for try := range 1 + lateTries {
			var got int
			r, got = says[doctorReport](w, w.h1, nil, "doctor", "-c", g1.config, "--peer", peer)
			said := func(l doctorLine) bool { return l.Check == "peer" && strings.Contains(l.Text, text) }
			if got == status && slices.ContainsFunc(r.Lines, said) {
				return r
			}
			require.Less(t, try, lateTries, "status %d: %+v", got, r)
			w.flush()
		}
		return r
	}
	w.carried(t, w.h1, w.h2.AddrPort4(echoPort).String())
	r := look(0, w.h2.AddrPort4(echoPort).String(), "a connection was carried by "+string(w.via))
	found(t, r, "daemon", "ok", "mode enforce")
	found(t, r, "capabilities", "ok", "the daemon has CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON")
	look(4, w.h3.AddrPort6(echoPort).String(), "a connection was native, peer_no_option")

	g1.says("off")
	r = look(4, w.h2.AddrPort4(echoPort).String(), "a connection was native, off")
	found(t, r, "daemon", "warning", "switched off")
}

// TestDoctorSoftPort checks that doctor finds out without a daemon whether a peer receives on soft's port.
func TestDoctorSoftPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.up(w.h2, settings{Carriers: "soft"})
	g := w.configure(w.h1, settings{Carriers: "soft"})
	delete(w.gateways, w.h1)
	r, status := says[doctorReport](w, w.h1, nil, "doctor", "-c", g.config, "--peer", w.h2.Addr6.String())
	require.Empty(t, failures(r))
	require.Zero(t, status)
	found(t, r, "peer", "ok", "is not refused")
	r, status = says[doctorReport](w, w.h1, nil, "doctor", "-c", g.config, "--peer", w.h3.Addr4.String())
	require.Empty(t, failures(r))
	require.Zero(t, status)
	found(t, r, "peer", "warning", fmt.Sprintf("%v answers that nothing receives on UDP port %d", w.h3.Addr4, rdmaPort))
}

// TestPing checks that ping reports what becomes of connections to a service, and why, over either family, and that
// the service goes on as before.
func TestPing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	for _, h := range []*testnet.Host{w.h2, w.h3} {
		w.serve(h)
	}
	g := w.up(w.h1, settings{Ports: "7000, 7099, 7300"})
	w.up(w.h2, settings{Ports: "7000, 7099, 8000"})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		// On a busy machine a gateway may be late, and so may the end of a trial: try a few times.
		ping := func(status int, reason, to string, flags ...string) (r pingReport) {
			t.Helper()
			for try := range 1 + lateTries {
				var got int
				r, got = says[pingReport](w, w.h1, nil, append([]string{"ping", to, "--count", "2"}, flags...)...)
				require.Len(t, r.Tries, 2)
				if got == status && r.Tries[1].Reason == reason {
					return r
				}
				require.Less(t, try, lateTries, "status %d: %+v", got, r)
				w.flush()
			}
			return r
		}
		last := func(r pingReport) pingTry { return r.Tries[1] }

		w.carried(t, w.h1, addr(w.h2, echoPort))
		r := ping(0, "", addr(w.h2, echoPort))
		require.Equal(t, 2, r.Carried)
		require.Equal(t, w.via, last(r).Carrier)
		require.Equal(t, "carried", last(r).Stage)
		require.Positive(t, last(r).MTU)

		r = ping(4, "peer_no_option", addr(w.h3, echoPort))
		require.Equal(t, "no_answer", last(r).Stage)
		w.flush()

		// The policy of this host, and with --offer that of the peer.
		r = ping(4, "policy", addr(w.h2, plainPort))
		require.Equal(t, "not_offered", last(r).Stage)
		r = ping(0, "", addr(w.h2, plainPort), "--offer", "--carrier", string(w.via))
		require.Equal(t, w.via, last(r).Carrier)
		ping(4, "policy", addr(w.h2, plainPort)) // the offer was for that ping only
		ping(4, "peer_no_option", addr(w.h2, holdPort), "--offer")

		r = ping(1, "", addr(w.h2, deadPort))
		require.Equal(t, 2, r.Failed)
		require.Equal(t, "connection refused", last(r).Error)
		w.flush()
		w.carried(t, w.h1, addr(w.h2, echoPort))
	})
	out, err := g.cli("ping", w.h2.AddrPort4(echoPort).String(), "--offer")
	require.Error(t, err)
	require.Contains(t, out, "belongs to the rule test")
}

// TestBugreport checks that the archive has everything, and no key.
func TestBugreport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	const key = "a key that both gateways have, and nothing else"
	psk := filepath.Join(w.dir, "psk")
	require.NoError(t, os.WriteFile(psk, []byte(key+"\n"), 0o600))
	s := settings{Extra: "security: { psk_file: " + psk + " }\n"}
	w.serve(w.h2)
	g1, _ := w.upBoth(s)
	w.carried(t, w.h1, w.h2.AddrPort4(echoPort).String())
	archive := filepath.Join(w.dir, "report.tar.gz")
	m, status := says[bugreportManifest](w, w.h1, nil, "bugreport", "-c", g1.config, "-o", archive)
	require.Zero(t, status)
	for _, e := range m.Entries {
		require.Empty(t, e.Error, e.Name)
	}
	info, err := os.Stat(archive)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	all, err := exec.CommandContext(t.Context(), "tar", "-xOzf", archive).Output()
	require.NoError(t, err)
	for _, want := range []string{`"schema":"smcgw.status/v1"`, "smcgw_sockops", "smcgw_flows", "smcgw_build_info", "mode: enforce", `"carrier":"` + string(w.via) + `"`, psk} {
		require.Contains(t, string(all), want)
	}
	require.NotContains(t, string(all), key)
}
