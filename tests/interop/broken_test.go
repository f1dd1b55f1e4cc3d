package interop

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/verbs"
)

// retriesTake bounds how long a queue pair may take to find out that its peer is gone. It has 8 tries of 67 ms each,
// which implementations may stretch to four times as much (IBTA vol. 1, 9.7.6.1.3), and the machines are slow.
const retriesTake = time.Minute

// TestProgramDies kills the other side in the middle of an exchange. The kernel
// destroys its queue pair, and ours gets no answer.
func TestProgramDies(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for _, path := range l.paths() {
			t.Run(path.name, func(t *testing.T) {
				server := l.start(t, "ibv_rc_pingpong", "-d", guest.Device, "-g", strconv.Itoa(path.gid), "-n", "1000000")
				p := &pingpong{e: l.open(t, path.our), kind: verbs.QPTRC, size: 4096, n: 20}
				p.prepare()
				p.client(l.dial(t, l.guest.Addr4, pingpongPort))
				p.play(true)
				server.Kill()

				// It lives a little longer, so there must be something to retry.
				start := time.Now()
				p.send(0, &pinging{})
				wc := p.e.next()
				for ; wc.Status == verbs.WCSuccess; wc = p.e.next() {
					if wc.WRID&sendID != 0 {
						p.send(0, &pinging{})
					} else {
						p.e.do(func() error { return p.postRecv(int(wc.WRID)) })
					}
				}
				require.Equal(t, verbs.WCRetryExcErr, wc.Status)
				require.NotZero(t, wc.WRID&sendID)
				require.Less(t, time.Since(start), retriesTake)
				for range p.slots {
					require.Equal(t, verbs.WCWRFlushErr, p.e.next().Status)
				}
				p.e.do(func() error {
					require.Equal(t, verbs.QPSErr, p.qps[0].State())
					return nil
				})
			})
		}
	})
}

// TestRemoteAccess accesses a memory region of the kernel's in ways that its key does not allow, and has the kernel
// do the same to ours.
func TestRemoteAccess(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		path := l.paths()[0]
		args := func(program string) []string {
			return []string{program, "-d", guest.Device, "-x", strconv.Itoa(path.gid), "-n", "20", "-F", "-m", "1024"}
		}
		const size = 65536
		for _, c := range []struct {
			name string
			wr   func(p *perftest) verbs.SendWR
		}{
			{"write beyond", func(p *perftest) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: p.peer.va + 16*size, RKey: p.peer.rkey}
			}},
			{"write with no key", func(p *perftest) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: p.peer.va, RKey: p.peer.rkey ^ 0x55}
			}},
			{"read of what may be written", func(p *perftest) verbs.SendWR {
				return verbs.SendWR{Opcode: verbs.WRRDMARead, RemoteAddr: p.peer.va, RKey: p.peer.rkey}
			}},
		} {
			t.Run("ours "+c.name, func(t *testing.T) {
				l.start(t, args("ib_write_bw")...)
				p := &perftest{e: l.open(t, path.our), conn: l.dial(t, path.peer, perftestPort)}
				p.open(p.e.memory(perftestMemory))
				wr := c.wr(p)
				wr.SGList, wr.Flags = sge(p.mr, 0, size), verbs.SendSignaled
				p.e.do(func() error { return p.qp.PostSend(&wr) })
				status := p.e.next().Status
				require.Contains(t, []verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCRemInvReqErr}, status)
				p.e.do(func() error {
					require.Equal(t, verbs.QPSErr, p.qp.State())
					return nil
				})
			})
		}
		for _, program := range []string{"ib_write_bw", "ib_read_bw", "ib_atomic_bw"} {
			t.Run("theirs "+program, func(t *testing.T) {
				ln := l.listen(t, path.our, perftestPort)
				client := l.start(t, append(args(program), path.our.String())...)
				conn, err := ln.Accept()
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				p := &perftest{e: l.open(t, path.our), conn: conn, server: true}
				p.open(forbidden{p.e.memory(perftestMemory)})
				require.Error(t, client.Wait(patience(t, time.Minute)))
				require.Regexp(t, "Failed status (9|10):", client.Output(), "remote invalid request or remote access error")
			})
		}
	})
}

// forbidden is a memory region that reports a wrong key.
type forbidden struct{ verbs.MR }

func (f forbidden) RKey() uint32 { return f.MR.RKey() ^ 0x55 }
