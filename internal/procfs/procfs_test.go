package procfs

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/": "/", "0::/a/b.service\n": "/a/b.service", "12:rdma:/x\n0::/y": "/y", "0::/../outside": "/../outside",
	} {
		at, ok := Cgroup(text)
		require.True(t, ok, text)
		require.Equal(t, want, at, text)
	}
	for _, text := range []string{"", "12:rdma:/x", "0:"} {
		_, ok := Cgroup(text)
		require.False(t, ok, text)
	}
	require.Empty(t, CgroupOf(-1))
}

func TestValue(t *testing.T) {
	const text = "00400000-7fff Pss 1 rollup\nRss:   10 kB\nPss:     1234 kB\nPss_Anon:\t0 kB\nCapEff:\t01ff\nPart: 7\nLess: -1 kB\n"
	v, ok := Value(text, "CapEff")
	require.True(t, ok)
	require.Equal(t, "01ff", v)
	for name, want := range map[string]int64{"Pss": 1234 << 10, "Pss_Anon": 0} {
		n, ok := Bytes(text, name)
		require.True(t, ok, name)
		require.Equal(t, want, n, name)
	}
	for _, name := range []string{"CapEff", "Part", "Less", "Pss_Shmem", "ss"} {
		_, ok := Bytes(text, name)
		require.False(t, ok, name)
	}
}

func TestCgroupIn(t *testing.T) {
	at, err := CgroupIn("31 24 0:27 / /sys/fs/cgroup rw - tmpfs x rw\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
	require.NoError(t, err)
	require.Equal(t, "/sys/fs/cgroup/unified", at)
	for _, text := range []string{"", "31 24 0:27 / /sys/fs/cgroup rw", "31 24 - cgroup2 cgroup2 rw"} {
		_, err = CgroupIn(text)
		require.ErrorIs(t, err, fs.ErrNotExist, text)
	}
}

func TestNameOf(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Symlink("/bin/sleep", filepath.Join(dir, "server")))
	c := exec.Command(filepath.Join(dir, "server"), "60")
	require.NoError(t, c.Start())
	require.Equal(t, "server", NameOf(c.Process.Pid)) // Start waits for the exec
	require.NoError(t, c.Process.Kill())
	require.Error(t, c.Wait())
	require.Empty(t, NameOf(c.Process.Pid))
}

func TestStat(t *testing.T) {
	const text Stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1000 0 0 0 7 3 0 0 20 0 5 0 100 1000 200"
	require.Equal(t, "S", text.State())
	require.Equal(t, 1, text.Parent())
	require.Equal(t, "100", text.Field(22))
	cpu, ok := text.CPU()
	require.True(t, ok)
	require.Equal(t, 100*time.Millisecond, cpu)
	for i := range len(text) - len(" 0 0 20 0 5 0 100 1000 200") - 1 {
		_, ok := text[:i].CPU()
		require.False(t, ok, text[:i])
	}
	for _, s := range []Stat{"1 (x) S 1 2 3 4 5 6 7 8 9 10 a b", StatOf(-1)} {
		_, ok = s.CPU()
		require.False(t, ok, s)
	}
	own := StatOf(os.Getpid())
	require.Equal(t, os.Getppid(), own.Parent())
	require.Empty(t, Children(os.Getpid()))
}

// TestEnds: a process ends when all of its threads do.
func TestEnds(t *testing.T) {
	require.False(t, Ends(os.Getpid()))
	require.NotEmpty(t, StatOf(os.Getpid()).Started())
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	require.False(t, Ends(c.Process.Pid))
	require.NoError(t, in.Close())
	require.Eventually(t, func() bool { return Ends(c.Process.Pid) }, 10*time.Second, time.Millisecond, "before it is waited for")
	require.NoError(t, c.Wait())
	require.True(t, Ends(c.Process.Pid))
}

func TestMemoryIn(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("pod/memory.max", "800\n")
	write("pod/memory.high", "700\n")
	write("pod/a/memory.max", "max\n")
	write("pod/b/memory.max", "600\n")
	write("free/memory.max", "max\n")
	write("memory/old/memory.limit_in_bytes", "500\n")
	write("memory/any/memory.limit_in_bytes", "9223372036854771712\n")
	for text, want := range map[string]string{
		"0::/pod/a\n":        "/pod 700",
		"0::/pod/b\n":        "/pod/b 600",
		"0::/free\n":         " 0",
		"0::/\n":             " 0",
		"0::/../elsewhere\n": " 0",
		"":                   " 0",
		"4:cpu,memory:/old\n1:pids:/x\n0::/pod/a\n": "/old 500",
		"4:memory:/any\n0::/pod/a\n":                " 0",
	} {
		cgroup, limit := memoryIn(dir, text)
		require.Equal(t, want, fmt.Sprint(cgroup, " ", limit), text)
	}
}
