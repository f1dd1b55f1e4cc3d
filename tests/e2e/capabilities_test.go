package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// capabilityMask returns the capabilities that a gateway keeps, as the bit set that /proc prints.
func capabilityMask() (mask uint64) {
	for _, c := range process.Capabilities() {
		mask |= 1 << c.Number
	}
	return mask
}

// confine makes the world's gateways start with exactly the capabilities that a gateway keeps.
func (w *world) confine() {
	w.t.Helper()
	testnet.Require(w.t, "root", "setpriv")
	set := []string{"-all"}
	for _, c := range process.Capabilities() {
		set = append(set, "+"+strings.ToLower(strings.TrimPrefix(c.Name, "CAP_")))
	}
	w.program = filepath.Join(w.dir, "confined")
	require.NoError(w.t, os.WriteFile(w.program, fmt.Appendf(nil,
		"#!/bin/sh\nexec setpriv --bounding-set %s %s \"$@\"\n", strings.Join(set, ","), binary), 0o700))
}

// privileges checks that every thread of every process of a gateway has at most these capabilities, and can never
// gain others. Its keeper has one, in the namespace of the legs, whichever user owns that.
func (g *gw) privileges(t *testing.T) {
	t.Helper()
	pids := g.processes()
	require.GreaterOrEqual(t, len(pids), 2, "guardian and daemon")
	inLegs := []int{g.keeper(), g.spare()}
	for _, pid := range append(pids, inLegs...) {
		mask := capabilityMask()
		if slices.Contains(inLegs, pid) {
			mask = 1 << unix.CAP_NET_ADMIN
		}
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		require.NoError(t, err)
		require.NotEmpty(t, tasks)
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			if os.IsNotExist(err) {
				continue // the thread has just ended
			}
			require.NoError(t, err)
			sets := map[string]uint64{}
			for line := range strings.Lines(string(text)) {
				name, value, _ := strings.Cut(line, ":")
				sets[name], _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			}
			for name, want := range map[string]uint64{
				"CapPrm": mask, "CapEff": mask, "CapBnd": mask, "CapInh": 0, "CapAmb": 0, "NoNewPrivs": 1,
			} {
				if (slices.Contains(inLegs, pid) || !strings.Contains(string(text), "\nUid:\t0\t")) && sets["CapAmb"] == mask && strings.HasPrefix(name, "Cap") {
					want = mask // a user other than root, or an unmapped one, keeps them as ambient
				}
				require.Equal(t, want, sets[name], "%s of %s\n%s", name, task, text)
			}
		}
	}
}

// TestCapabilities checks that guardian and daemon keep exactly the capabilities that docs/OPERATIONS.md "What it
// needs" lists, whether they start with all of root's or only with those, and that everything works with them: every
// carrier, datagrams, the switch and cleaning up.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		all  bool
	}{{"of root", true}, {"kept ones", false}} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			capable(t, c.all)
		})
	}
}

func capable(t *testing.T, all bool) {
	for _, carriers := range []string{"shm", "soft"} {
		d := newDatagramWorld(t)
		if !all {
			d.confine()
		}
		d.via = report.Carrier("rdma-" + carriers)
		d.serve(d.h2)
		d.server = d.serveNumbered(d.h2)
		rules, err := d.h1.Rules()
		require.NoError(t, err)
		s := datagramSettings()
		s.Carriers = carriers
		d.g1, d.g2 = d.up(d.h1, s), d.up(d.h2, s)
		for _, g := range d.gateways {
			g.privileges(t)
		}
		d.prove(t, d.h2.AddrPort4(echoUDP))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			to := addr(d.h2, echoPort)
			d.carried(t, d.h1, to)
			from := netip.AddrPortFrom(hostOf(addr(d.h1, 1)), 1000).String() // a privileged port
			d.carriedApp(t, d.h1, "ping", "-count", "3", "-bind", from, "-to", to)
		})
		d.g1.says("off")
		d.mustApp(d.h1, "ping", "-to", d.h2.AddrPort4(echoPort).String())
		d.g1.says("on")
		if carriers == "soft" {
			require.NoError(t, d.net.SetBox(testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}}))
			d.restart(d.h1, s) // a proof stays valid for a while
			d.flush()
			d.carriedAppBy(t, report.CarrierRelay, d.h1, "ping", "-count", "20", "-to", d.h2.AddrPort4(echoPort).String())
			d.gateways[d.h1].stop()
			continue
		}
		died := d.gateways[d.h1]
		for _, pid := range died.processes() {
			died.signal(pid, syscall.SIGKILL)
		}
		var out string
		require.Eventually(t, func() bool { // the kernel takes its time to close what they had
			out, err = d.h1.Run(t.Context(), d.current(nil), "cleanup", "-c", died.config)
			return err == nil
		}, 30*time.Second, 50*time.Millisecond, "clean up")
		now, err := d.h1.Rules()
		require.NoError(t, err)
		require.Equal(t, sorted(rules), sorted(now), out)
	}
}
