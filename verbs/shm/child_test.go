package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
)

// The test binary, started again with SHM_TEST_CHILD, is the other process.

// child attaches to the offer in its arguments, connects a queue pair that
// echoes, prints its number, and lives until it is killed or its input ends.
func child(mode string) int {
	f := strings.Fields(mode)
	if f[0] == "outsider" {
		return outsider(f[1])
	}
	key, err := hex.DecodeString(f[2])
	if err != nil || len(key) != 16 {
		return 2
	}
	d, err := Open(Config{Dir: f[0], GatewayID: newID(), PeerQuota: 8 << 20})
	if err != nil {
		return 3
	}
	defer d.Close()
	p, err := d.Attach(context.Background(), f[1], [16]byte(key))
	if err != nil {
		fmt.Println("attach:", err)
		return 4
	}
	if err := childEcho(d, p); err != nil {
		fmt.Println("echo:", err)
		return 5
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return 0
}

// outsider calls a rendezvous socket as another user and prints the answer.
func outsider(path string) int {
	if err := syscall.Setuid(54321); err != nil {
		return 6
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		fmt.Println(err)
		return 7
	}
	defer c.Close()
	m, _, err := receiveMessage(c)
	fmt.Println(m.kind, m.code, err)
	return 0
}

func childEcho(d *Device, p *Peer) error {
	cq, err := d.CreateCQ(verbs.CQAttr{Depth: 64})
	if err != nil {
		return err
	}
	qp, err := p.PD().CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, SQSigAll: true, Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 16}})
	if err != nil {
		return err
	}
	loop, err := loop.New(d, 0, func() bool { return echo(cq, qp) })
	if err != nil {
		return err
	}
	err2 := loop.Do(func() { err = childConnect(qp) })
	if err == nil && err2 == nil {
		fmt.Println("qpn", qp.Num())
	}
	return err
}

func childConnect(qp verbs.QP) error {
	if err := verbs.Init(qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return err
	}
	for range 16 {
		if err := qp.PostRecv(&verbs.RecvWR{}); err != nil {
			return err
		}
	}
	return verbs.Connect(qp, verbs.ConnectAttr(AnyQPN))
}

// echo answers every immediate with the same immediate.
func echo(cq verbs.CQ, qp verbs.QP) bool {
	var wcs [8]verbs.WC
	n, _ := cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		if wc.Opcode == verbs.WCRecvRDMAWithImm && wc.Status == verbs.WCSuccess {
			_ = qp.PostRecv(&verbs.RecvWR{})
			_ = qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, ImmData: wc.ImmData})
		}
	}
	return n > 0
}

// startChild runs the other process and returns it with its queue pair number.
func startChild(t *testing.T, dir string, p *Peer) (*exec.Cmd, uint32) {
	key := p.Key()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("SHM_TEST_CHILD=%s %s %s", dir, p.Name(), hex.EncodeToString(key[:])))
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var qpn uint32
	_, err = fmt.Sscanf(line, "qpn %d", &qpn)
	require.NoError(t, err, line)
	return cmd, qpn
}

// The other process echoes. After it is killed, its peer is down, everything
// posted is flushed and the memory is freed. No timer of the device causes
// that, so the test waits for none.
func TestOtherProcessKilled(t *testing.T) {
	dir := t.TempDir()
	down := make(chan time.Time, 1)
	d := openDevice(t, dir, func(c *Config) { c.OnPeerDown = func(*Peer) { down <- time.Now() } })
	_, err := d.Listen()
	require.NoError(t, err)
	p, err := d.Offer()
	require.NoError(t, err)
	cmd, qpn := startChild(t, dir, p)
	h := newHost(t, d, p)
	h.connect(qpn)
	for i := range uint32(100) {
		h.post(i)
		require.Equal(t, i, h.recv().ImmData)
	}
	start := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	h.flushed()
	t.Logf("down after %v, all flushed after %v", (<-down).Sub(start), time.Since(start))
	<-p.Done()
	require.Error(t, p.Err())
	require.Nil(t, peerByGateway(d, p.Gateway()))
	_, err = p.PD().AllocMR(4096, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrRemoteGone)
	h.close()
	settled(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(t, p.refs, "memory still mapped")
	require.Nil(t, p.own.b)
}

// A stopped process does not acknowledge: memory stays in quarantine, bounded
// by the quota, and comes back when the process goes on.
func TestOtherProcessStopped(t *testing.T) {
	dir := t.TempDir()
	d := openDevice(t, dir)
	_, err := d.Listen()
	require.NoError(t, err)
	p, err := d.Offer()
	require.NoError(t, err)
	cmd, qpn := startChild(t, dir, p)
	h := newHost(t, d, p)
	h.connect(qpn)
	h.post(1)
	h.recv()
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var stopped syscall.WaitStatus // on a busy machine its threads go on until the one that got the signal stops them
	_, err = syscall.Wait4(cmd.Process.Pid, &stopped, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, stopped.Stopped())
	var n int
	for {
		mr, err := p.PD().AllocMR(1<<20, verbs.AccessLocalWrite)
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrNoMemory)
			break
		}
		require.NoError(t, mr.Close())
		n++
	}
	require.LessOrEqual(t, n, 8)
	require.NotZero(t, p.Stats().QuarantinedBytes)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	eventually(t, patience, func() bool { return p.Stats().QuarantinedBytes == 0 }, "quarantine empty")
	settled(p)
	mr, err := p.PD().AllocMR(1<<20, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	h.close()
}

// host is a device with a loop and one queue pair, seen from a test goroutine.
type host struct {
	t    testing.TB
	cq   verbs.CQ
	qp   verbs.QP
	loop *loop.Loop
	recs chan verbs.WC
	errs chan verbs.WC
}

const hostDepth = 16

func newHost(t testing.TB, d *Device, p *Peer) *host {
	h := &host{t: t, recs: make(chan verbs.WC, 1024), errs: make(chan verbs.WC, 1024)}
	var err error
	h.cq, err = d.CreateCQ(verbs.CQAttr{Depth: 256})
	require.NoError(t, err)
	attr := verbs.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Type: verbs.QPTRC, Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: hostDepth}}
	h.qp, err = p.PD().CreateQP(&attr)
	require.NoError(t, err)
	require.NoError(t, verbs.Init(h.qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	for range hostDepth {
		require.NoError(t, h.qp.PostRecv(&verbs.RecvWR{}))
	}
	h.loop, err = loop.New(d, 0, h.turn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.loop.Close() })
	return h
}

func (h *host) turn() bool {
	var wcs [16]verbs.WC
	n, _ := h.cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		switch {
		case wc.Status != verbs.WCSuccess:
			h.errs <- wc
		case wc.Opcode == verbs.WCRecvRDMAWithImm:
			_ = h.qp.PostRecv(&verbs.RecvWR{})
			h.recs <- wc
		}
	}
	return n > 0
}

func (h *host) do(f func() error) {
	h.t.Helper()
	var err error
	require.NoError(h.t, h.loop.Do(func() { err = f() }))
	require.NoError(h.t, err)
}

func (h *host) connect(qpn uint32) {
	h.t.Helper()
	h.do(func() error { return verbs.Connect(h.qp, verbs.ConnectAttr(qpn)) })
}

func (h *host) post(imm uint32) {
	h.t.Helper()
	h.do(func() error {
		return h.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, ImmData: imm, Flags: verbs.SendSignaled})
	})
}

func (h *host) recv() verbs.WC {
	h.t.Helper()
	select {
	case wc := <-h.recs:
		return wc
	case <-time.After(patience):
		h.t.Fatal("no message")
		return verbs.WC{}
	}
}

// flushed waits until all receives have come back with errors.
func (h *host) flushed() {
	h.t.Helper()
	for range hostDepth {
		select {
		case wc := <-h.errs:
			require.Equal(h.t, verbs.WCWRFlushErr, wc.Status)
		case <-time.After(patience):
			h.t.Fatal("not flushed")
		}
	}
}

func (h *host) close() {
	h.do(h.qp.Close)
	require.NoError(h.t, h.loop.Close())
}
