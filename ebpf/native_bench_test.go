package ebpf

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// BenchmarkNative is what a connection that is not carried costs on both of its
// hosts together, in nanoseconds of each program: its beginning and end
// (SYN, SYN-ACK, ACK, RST), and a segment of it. The kernel counts the time of
// the programs; what its counting takes is in it, some 20 ns a run. ns/op is
// connect() as the application waits for it, without the counting. Below bare are
// programs that return at once where a gateway's are: what the hooks cost.
func BenchmarkNative(b *testing.B) {
	requireRoot(b)
	for _, v := range []struct {
		name   string
		policy []Rule
		server bool // has a gateway too
		bare   bool // both have programs that do nothing
		know   func(b *testing.B, d *Datapath, to netip.AddrPort)
	}{
		{name: "nothing"},
		{name: "bare", bare: true},
		{name: "unselected", policy: accelerate(1), server: true},
		{name: "released", policy: accelerate(6000), know: func(b *testing.B, d *Datapath, to netip.AddrPort) {
			require.NoError(b, d.Remember(to.Addr(), 0, ReasonPeerNoOption, time.Hour))
		}},
		{name: "auto", policy: []Rule{{Action: ActionNotWorthIt}}, server: true},
		{name: "plain", policy: accelerate(6000)},
	} {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			b.Run(fmt.Sprintf("%s/%s", v.name, map[int]string{unix.AF_INET: "v4", unix.AF_INET6: "v6"}[family]), func(b *testing.B) {
				w := newNativeWorld(b, family)
				if v.bare {
					w.attachBare(b)
				}
				if v.policy != nil {
					cfg := config(v.policy)
					cfg.CgroupPath = w.cgroups[0]
					w.gateways = append(w.gateways, w.hosts[0].open(cfg))
				}
				if v.server {
					cfg := config(v.policy)
					cfg.CgroupPath = w.cgroups[1]
					w.gateways = append(w.gateways, w.hosts[1].open(cfg))
				}
				if v.know != nil {
					v.know(b, w.gateways[0], w.to)
				}
				b.Run("connection", w.connections)
				b.Run("segment", w.segments)
			})
		}
	}
}

// nativeWorld is a client, a server, and the control group of each.
type nativeWorld struct {
	hosts    [2]*host
	cgroups  [2]string
	gateways []*Datapath
	family   int
	to       netip.AddrPort
	ln       int
}

func newNativeWorld(b *testing.B, family int) *nativeWorld {
	w := &nativeWorld{family: family, to: addrPort("10.77.0.2:6000"), hosts: [2]*host{newHost(b), newHost(b)}}
	if family == unix.AF_INET6 {
		w.to = addrPort("[fd77::2]:6000")
	}
	pair(b, w.hosts[0], w.hosts[1])
	root, err := procfs.CgroupMount()
	require.NoError(b, err)
	for i := range w.cgroups {
		w.cgroups[i] = filepath.Join(root, fmt.Sprintf("smcgw-bench-%d-%d", os.Getpid(), i))
		require.NoError(b, os.Mkdir(w.cgroups[i], 0o700))
		b.Cleanup(func() {
			w.enter(b, root)
			require.NoError(b, os.Remove(w.cgroups[i]))
		})
	}
	w.enter(b, w.cgroups[1]) // a socket is of the group that makes it
	w.hosts[1].do(func() {
		w.ln, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(b, err)
		require.NoError(b, unix.Bind(w.ln, sockaddr.Of(w.to)))
		require.NoError(b, unix.Listen(w.ln, 4096))
	})
	b.Cleanup(func() { _ = unix.Close(w.ln) })
	w.enter(b, w.cgroups[0])
	return w
}

// attachBare attaches programs that do nothing, on both hosts, to the hooks that a native
// connection passes.
func (w *nativeWorld) attachBare(b *testing.B) {
	b.Helper()
	program := func(kind bpf.ProgramType, at bpf.AttachType, answer int32) *bpf.Program {
		p, err := bpf.NewProgram(&bpf.ProgramSpec{Type: kind, AttachType: at, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, answer),
			asm.Return(),
		}})
		require.NoError(b, err)
		b.Cleanup(func() { _ = p.Close() })
		return p
	}
	for i, h := range w.hosts {
		for _, at := range []bpf.AttachType{bpf.AttachTCXIngress, bpf.AttachTCXEgress} {
			h.do(func() {
				index, err := linkIndex("w0")
				require.NoError(b, err)
				l, err := attachTCX(program(bpf.SchedCLS, at, -1), index, at, link.Tail())
				require.NoError(b, err)
				b.Cleanup(func() { _ = l.Close() })
			})
		}
		for at, kind := range map[bpf.AttachType]bpf.ProgramType{
			bpf.AttachCGroupInet4Connect: bpf.CGroupSockAddr,
			bpf.AttachCGroupInet6Connect: bpf.CGroupSockAddr,
			bpf.AttachCGroupSockOps:      bpf.SockOps,
		} {
			l, err := link.AttachCgroup(link.CgroupOptions{Path: w.cgroups[i], Attach: at, Program: program(kind, at, 1)})
			require.NoError(b, err)
			b.Cleanup(func() { _ = l.Close() })
		}
	}
}

// enter moves this process to a control group.
func (w *nativeWorld) enter(b *testing.B, group string) {
	require.NoError(b, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0))
}

// onClient runs f on a thread of the client's host.
func (w *nativeWorld) onClient(b *testing.B, f func() error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	require.NoError(b, err)
	defer func() {
		require.NoError(b, netns.Set(own))
		_ = own.Close()
	}()
	require.NoError(b, netns.Set(w.hosts[0].ns))
	require.NoError(b, f())
}

// one makes a connection, which a reset ends, so that no port waits.
func (w *nativeWorld) one() (took time.Duration, err error) {
	c, s, took, err := w.connect()
	if err != nil {
		return 0, err
	}
	_ = unix.SetsockoptLinger(c, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(c)
	return took, unix.Close(s)
}

func (w *nativeWorld) connect() (client, server int, took time.Duration, err error) {
	client, err = unix.Socket(w.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, 0, err
	}
	to := sockaddr.Of(w.to)
	begin := time.Now()
	err = unix.Connect(client, to)
	took = time.Since(begin)
	if err == nil {
		server, _, err = unix.Accept(w.ln)
	}
	return client, server, took, err
}

func (w *nativeWorld) connections(b *testing.B) {
	w.onClient(b, func() error {
		var sum time.Duration
		for range b.N {
			took, err := w.one()
			if err != nil {
				return err
			}
			sum += took
		}
		b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N), "ns/op")
		return w.counted(b, "conn", func() error {
			for range b.N {
				if _, err := w.one(); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (w *nativeWorld) segments(b *testing.B) {
	w.onClient(b, func() error {
		c, s, _, err := w.connect()
		if err != nil {
			return err
		}
		defer func() { _, _ = unix.Close(c), unix.Close(s) }()
		for _, fd := range []int{c, s} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
				return err
			}
		}
		for range 2 { // as two seconds later: an offer that was made is forgotten
			for _, d := range w.gateways {
				if _, err := d.Sweep(SweepLimits{}); err != nil {
					return err
				}
			}
		}
		buf := make([]byte, 64)
		exchange := func() error {
			for range b.N {
				for _, way := range [][2]int{{c, s}, {s, c}} {
					if _, err := unix.Write(way[0], buf); err != nil {
						return err
					}
					if _, err := unix.Read(way[1], buf); err != nil {
						return err
					}
				}
			}
			return nil
		}
		b.ResetTimer()
		if err := exchange(); err != nil {
			return err
		}
		b.StopTimer()
		return w.counted(b, "run", exchange)
	})
}

// counted runs f while the kernel counts the time of programs.
func (w *nativeWorld) counted(b *testing.B, per string, f func() error) error {
	stats, err := bpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return err
	}
	defer func() { _ = stats.Close() }()
	before := w.spent(b)
	if err := f(); err != nil {
		return err
	}
	for name, after := range w.spent(b) {
		time, runs := after[0]-before[name][0], after[1]-before[name][1]
		if runs*2 < float64(b.N) {
			continue
		}
		if per == "run" {
			b.ReportMetric(time/runs, name+"-ns/run")
			continue
		}
		b.ReportMetric(time/float64(b.N), name+"-ns/conn")
		b.ReportMetric(runs/float64(b.N), name+"-runs/conn")
	}
	return nil
}

// spent is the nanoseconds and runs of each program, of all gateways together.
func (w *nativeWorld) spent(b *testing.B) map[string][2]float64 {
	sums := map[string][2]float64{}
	for _, d := range w.gateways {
		for name, p := range d.objs.programs() {
			s, err := p.Stats()
			require.NoError(b, err)
			at := sums[name]
			sums[name] = [2]float64{at[0] + float64(s.Runtime.Nanoseconds()), at[1] + float64(s.RunCount)}
		}
	}
	return sums
}
