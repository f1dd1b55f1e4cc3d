package witness

import (
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWitness: connections of programs in the cgroup are told, with those that fail; others
// are not.
func TestWitness(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	dir, err := os.MkdirTemp(mount, "smcgw-witness-") //nolint:usetesting // a control group
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 30*time.Second, 10*time.Millisecond)
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	w, err := Attach(dir)
	require.NoError(t, err)
	defer w.Close()
	at, err := os.Open(dir)
	require.NoError(t, err)
	defer at.Close()
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	cmd := exec.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0; exec 4<>/dev/tcp/::1/1; exit 0`, ln.Addr().String()[len("127.0.0.1:"):])
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(at.Fd())}
	_ = cmd.Run() // the second connection fails, where there is IPv6
	other, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, w.Settle())
	list, more := w.Connections()
	require.Zero(t, more)
	require.Equal(t, port, list[0].Remote.Port())
	require.Equal(t, "127.0.0.1", list[0].Local.Addr().String())
	require.True(t, w.Has(list[0]))
	for _, c := range list {
		require.NotEqual(t, other.LocalAddr().String(), c.Local.String())
	}
}

func TestBound(t *testing.T) {
	w := &Witness{known: map[Connection]bool{}}
	c := Connection{}
	w.add(c)
	w.add(c)
	list, more := w.Connections()
	require.Len(t, list, 1)
	require.Zero(t, more)
	w.seen = make([]Connection, most)
	c.Local = list[0].Local
	delete(w.known, c)
	w.add(c)
	_, more = w.Connections()
	require.Equal(t, 1, more)
}

func record() []byte {
	b := make([]byte, size)
	b[0] = 2
	copy(b[4:], []byte{10, 0, 0, 2, 10, 0, 0, 1})
	copy(b[44:], []byte{0, 0, 0x18, 0xeb})
	copy(b[48:], []byte{0x40, 0x9c, 0, 0})
	return b
}

func TestParse(t *testing.T) {
	c, ok := parse(record())
	require.True(t, ok)
	require.Equal(t, "10.0.0.1:40000", c.Local.String())
	require.Equal(t, "10.0.0.2:6379", c.Remote.String())
}

func TestParseTruncated(t *testing.T) {
	for n := range size {
		_, ok := parse(record()[:n])
		require.False(t, ok, n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(record())
	f.Add([]byte{10})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, ok := parse(b); ok {
			require.True(t, c.Local.IsValid() && c.Remote.IsValid())
		}
	})
}
