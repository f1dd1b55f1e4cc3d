package interop

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// Programs whose connections are promoted in process, and where they are in the guest.
const (
	ringPort     = 7021
	ringLibrary  = "/bin/libsmcgw.so"
	ringProgram  = "/bin/stream"
	ringLoad     = "/bin/smcgw-load" // beside the library, where smcgw bench looks for it
	ringSocket   = "/run/rings.sock"
	ringBytes    = 1 << 20
	ringPatience = 4 * time.Minute
)

// ringSettings makes the connections of those programs be promoted between hosts.
func ringSettings(carriers string) adapterSettings {
	return adapterSettings{
		carriers: carriers,
		rule:     fmt.Sprintf("  - { name: rings, match: { ports: [%d] }, action: accelerate, way: in-process }\n", ringPort),
		more:     "in_process: { socket: " + ringSocket + ", between_hosts: on }\n",
	}
}

// ringPrograms builds the library, a program that checks every byte of a stream, and that of smcgw bench.
func ringPrograms(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	files, dir := map[string]string{ringLibrary: testnet.Library(t)}, t.TempDir()
	for path, source := range map[string]string{
		ringProgram: "../e2e/testdata/inprocess/stream.c", ringLoad: "../../cmd/smcgw/internal/bench/program/load.c",
	} {
		files[path] = filepath.Join(dir, filepath.Base(path))
		out, err := exec.CommandContext(ctx, "gcc", "-std=gnu11", "-O1", "-pthread", "-o", files[path], source).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return files
}

// ringStreams are a stream each way between the guests. Each server checks what it receives.
type ringStreams struct {
	p       *adapterPair
	servers [2]*remote.Process // by guest
	clients [2]*remote.Process
}

// streams starts endless streams. They are slow, since rdma_rxe on a busy machine loses fast ones.
func (p *adapterPair) streams(ctx context.Context, t *testing.T) *ringStreams {
	t.Helper()
	s := &ringStreams{p: p}
	start := func(i int, args ...string) *remote.Process {
		return startIn(t, p.guest[i], append([]string{"env", "LD_PRELOAD=" + ringLibrary, "SMCGW_SOCKET=" + ringSocket, ringProgram}, args...)...)
	}
	for i := range s.servers {
		s.servers[i] = start(i, "serve", fmt.Sprint(ringPort))
		require.NoError(t, s.servers[i].WaitOutput(ctx, "serving"))
	}
	for i := range s.clients {
		s.clients[i] = start(i, "send", p.guest[1-i].Addr4.String(), fmt.Sprint(ringPort), fmt.Sprint(uint64(1)<<40), "8192", "2000")
	}
	return s
}

// kill kills the programs, which must have seen no wrong byte.
func (s *ringStreams) kill(t *testing.T) {
	t.Helper()
	for i := range s.servers {
		require.NotContains(t, s.clients[i].Output()+s.servers[i].Output(), "error")
		s.clients[i].Kill()
		s.servers[i].Kill()
	}
}

// at returns how many bytes the server in a guest has checked.
func (s *ringStreams) at(i int) (n int) {
	out := s.servers[i].Output()
	if at := strings.LastIndex(out, "at "); at >= 0 {
		_, _ = fmt.Sscanf(out[at:], "at %d\n", &n)
	}
	return n
}

// until waits for something that two emulated machines do together.
func (s *ringStreams) until(ctx context.Context, t *testing.T, what string, cond func() bool) {
	t.Helper()
	began := time.Now()
	for !cond() {
		if ctx.Err() != nil || time.Since(began) > ringPatience {
			s.p.tell(t)
			require.FailNow(t, "in vain: "+what, "the streams are at %d and %d", s.at(0), s.at(1))
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%s: %v", what, time.Since(began))
}

// goOn requires both streams to move on.
func (s *ringStreams) goOn(ctx context.Context, t *testing.T, bytes int) {
	t.Helper()
	was := [2]int{s.at(0), s.at(1)}
	s.until(ctx, t, "the streams go on", func() bool { return s.at(0)-was[0] >= bytes && s.at(1)-was[1] >= bytes })
}

// ends returns the promoted ends in a guest.
func (p *adapterPair) ends(ctx context.Context, t *testing.T, i int) []report.ConnInfo {
	t.Helper()
	var all admin.ConnList
	p.ask(ctx, t, i, &all, "conns", "--way", "in-process")
	return all.Conns
}

// promoted waits until bytes have moved both ways in the rings of each end over a carrier. The adapter of an emulated
// machine may lose a connection, which is then promoted again, so the ends need not be promoted at the same time.
func (s *ringStreams) promoted(ctx context.Context, t *testing.T, carrier report.Carrier) {
	t.Helper()
	seen := map[string]bool{}
	s.until(ctx, t, "promoted", func() bool {
		for i := range s.p.guest {
			for _, e := range s.p.ends(ctx, t, i) {
				if e.InProcess.TxRing > 0 && e.InProcess.RxRing > 0 {
					require.Equal(t, carrier, e.Carrier)
					seen[fmt.Sprint(i, e.Side)] = true
				}
			}
		}
		return len(seen) == 4
	})
}

// native waits until no end is in rings.
func (s *ringStreams) native(ctx context.Context, t *testing.T) {
	t.Helper()
	s.until(ctx, t, "by the kernel", func() bool { return len(s.p.ends(ctx, t, 0))+len(s.p.ends(ctx, t, 1)) == 0 })
}

// rings checks that adapters carry connections that are promoted between hosts from ring to ring, that the switch
// moves them back and forth, and that they go on by the kernel without an adapter.
func (p *adapterPair) rings(ctx context.Context, t *testing.T) {
	p.up(ctx, t, ringSettings("hw"))
	before := [2]uint64{p.received(ctx, t, 0), p.received(ctx, t, 1)}
	s := p.streams(ctx, t)
	s.promoted(ctx, t, report.CarrierHW)
	s.goOn(ctx, t, ringBytes)
	for i := range p.guest {
		require.Greater(t, p.received(ctx, t, i)-before[i], uint64(ringBytes/1024), "packets of the adapter")
	}
	var done admin.Result
	p.ask(ctx, t, 0, &done, "off")
	s.native(ctx, t)
	s.goOn(ctx, t, ringBytes)
	p.ask(ctx, t, 0, &done, "on")
	s.promoted(ctx, t, report.CarrierHW)
	p.ask(ctx, t, 1, &done, "demote", "--device", guest.Device)
	p.sh(ctx, t, 1, "rdma link delete "+guest.Device)
	s.native(ctx, t)
	s.goOn(ctx, t, ringBytes)
	p.sh(ctx, t, 1, "rdma link add "+guest.Device+" type rxe netdev eth0")
	s.kill(t)
}

// ringsOfOne removes the adapter of one host. Connections must use what both hosts have, and the kernel if that is
// nothing.
func (p *adapterPair) ringsOfOne(ctx context.Context, t *testing.T) {
	p.sh(ctx, t, 1, "rdma link delete "+guest.Device)
	p.up(ctx, t, ringSettings("hw, soft"))
	s := p.streams(ctx, t)
	s.promoted(ctx, t, report.CarrierSoft)
	s.goOn(ctx, t, ringBytes)
	p.sh(ctx, t, 1, endGateways)
	p.gateway(ctx, t, 1, ringSettings("hw"))
	s.native(ctx, t)
	s.goOn(ctx, t, ringBytes)
	p.sh(ctx, t, 1, "rdma link add "+guest.Device+" type rxe netdev eth0")
	s.kill(t)
}

// ringsDown takes the link down, and with it the adapter's port and the kernel's path, until both return.
func (p *adapterPair) ringsDown(ctx context.Context, t *testing.T) {
	p.up(ctx, t, ringSettings("hw"))
	s := p.streams(ctx, t)
	s.promoted(ctx, t, report.CarrierHW)
	p.sh(ctx, t, 0, fmt.Sprintf("ip link set eth0 down; sleep 4; ip link set eth0 up; ip -6 addr replace %v/64 dev eth0 nodad", p.guest[0].Addr6))
	s.goOn(ctx, t, ringBytes)
	p.becomes(ctx, t, 0, report.DeviceActive)
	s.promoted(ctx, t, report.CarrierHW)
	s.kill(t)
}
