package witness

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestBothEndsAgree: before bytes, and after some.
func TestBothEndsAgree(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	p, err := LoadSequences(cgroupMount(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	for _, network := range []string{"tcp4", "tcp6"} {
		client, server := connected(t, network)
		names := map[numbers]bool{}
		for range 3 {
			a, b := sequencesOf(t, p, client, true), sequencesOf(t, p, server, false)
			require.Equal(t, a, b.mirror())
			names[a] = true
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				_, err := pair[0].Write(make([]byte, 100000))
				require.NoError(t, err)
				_, err = io.ReadFull(pair[1], make([]byte, 99000))
				require.NoError(t, err)
			}
		}
		require.Len(t, names, 1, "bytes change nothing")
	}
}

// TestAfterRefusals: segments that the device has refused count as sent, and again when they are. The numbers stay, and the side
// is what the caller says.
func TestAfterRefusals(t *testing.T) {
	testnet.Require(t, "root", "bpf", "ip", "tc")
	testnet.InNamespace(t, func() {
		run := func(args ...string) {
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		run("ip", "link", "set", "lo", "up")
		p, err := LoadSequences(cgroupMount(t))
		require.NoError(t, err)
		defer func() { require.NoError(t, p.Close()) }()
		client, server := connected(t, "tcp4")
		want := sequencesOf(t, p, client, true)
		require.Equal(t, want.mirror(), sequencesOf(t, p, server, false))
		run("tc", "qdisc", "add", "dev", "lo", "root", "bfifo", "limit", "100")
		for _, c := range []*net.TCPConn{client, server} {
			_, err = c.Write(make([]byte, 1000))
			require.NoError(t, err)
		}
		run("tc", "qdisc", "del", "dev", "lo", "root")
		for i, c := range []*net.TCPConn{client, server} {
			_, err = io.ReadFull(c, make([]byte, 1000))
			require.NoError(t, err)
			controlled(t, c, func(fd int) {
				mine, peer, is, err := p.Of(fd, i == 0)
				require.NoError(t, err)
				require.Equal(t, i == 0, is)
				require.Equal(t, []numbers{want, want.mirror()}[i], numbers{mine, peer})
				_, _, is, err = p.Of(fd, i != 0)
				require.NoError(t, err)
				require.Equal(t, i != 0, is, "the kernel has told the side: this test refuses nothing")
			})
		}
	})
}

func (n numbers) mirror() numbers { return numbers{n.peer, n.mine} }

// TestOthersAreLeft: other options have their answers, and without the program there is none.
func TestOthersAreLeft(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	client, _ := connected(t, "tcp4")
	ask := func() (size int, err error) {
		controlled(t, client, func(fd int) { size, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF) })
		return
	}
	before, err := ask()
	require.NoError(t, err)
	var refused error // of a kernel without the program
	controlled(t, client, func(fd int) { _, refused = unix.GetsockoptInt(fd, optionLevel, 1) })
	require.Error(t, refused)
	p, err := LoadSequences(cgroupMount(t))
	require.NoError(t, err)
	after, err := ask()
	require.NoError(t, err)
	require.Equal(t, before, after)
	controlled(t, client, func(fd int) {
		_, err = unix.GetsockoptInt(fd, optionLevel, 1) // too small for the answer
		require.Equal(t, refused, err)
	})
	require.NoError(t, p.Close())
	controlled(t, client, func(fd int) { _, _, _, err = p.Of(fd, true) })
	require.ErrorIs(t, err, os.ErrClosed)
}

// TestRests: it is attached again when it is asked.
func TestRests(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	client, _ := connected(t, "tcp4")
	begun := time.Now()
	p, err := LoadSequences(cgroupMount(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	attached := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.link != nil
	}
	require.True(t, attached() || time.Since(begun) > optionIdle)
	require.Eventually(t, func() bool { return !attached() }, 20*optionIdle, optionIdle/20)
	begun = time.Now()
	n := sequencesOf(t, p, client, true)
	require.True(t, attached() || time.Since(begun) > optionIdle)
	require.Equal(t, n, sequencesOf(t, p, client, true))
}

func sequencesOf(t *testing.T, p *Sequences, c *net.TCPConn, client bool) (n numbers) {
	controlled(t, c, func(fd int) {
		var err error
		var is bool
		n.mine, n.peer, is, err = p.Of(fd, !client)
		require.NoError(t, err)
		require.Equal(t, client, is)
	})
	return n
}

func controlled(t testing.TB, c *net.TCPConn, f func(fd int)) {
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { f(int(fd)) }))
}

func connected(t testing.TB, network string) (client, server *net.TCPConn) {
	l, err := net.Listen(network, map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network])
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial(network, l.Addr().String())
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func cgroupMount(t testing.TB) string {
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	return mount
}

// TestWhileItMoves: the numbers of a connection that is busy in both directions are those that it had.
func TestWhileItMoves(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	p, err := LoadSequences(cgroupMount(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	client, server := connected(t, "tcp4")
	want := sequencesOf(t, p, client, true)
	var moving sync.WaitGroup
	for _, c := range []net.Conn{client, server} {
		moving.Go(func() {
			for b := make([]byte, 4000); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})
		moving.Go(func() { _, _ = io.Copy(io.Discard, c) })
	}
	named := 0
	for range 2000 { // most of the time, where other programs leave the machine to it
		if named > 200 {
			break
		}
		for i, c := range []*net.TCPConn{client, server} {
			controlled(t, c, func(fd int) {
				mine, peer, is, err := p.Of(fd, i == 0)
				if errors.Is(err, ErrMoves) {
					return
				}
				require.NoError(t, err)
				require.Equal(t, i == 0, is)
				n := numbers{mine, peer}
				if i == 1 {
					n = n.mirror()
				}
				require.Equal(t, want, n)
				named++
			})
		}
	}
	require.Greater(t, named, 200)
	_ = client.Close()
	_ = server.Close()
	moving.Wait()
}
