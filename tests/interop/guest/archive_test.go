package guest

import (
	"bytes"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// member is one member of a cpio archive.
type member struct {
	name    string
	mode    uint64
	content string
}

// readArchive reads the "newc" format: a header of text, the name and the
// content, the last two padded to a multiple of four from the beginning.
func readArchive(t *testing.T, b []byte) (all []member) {
	at := 0
	take := func(n int) []byte {
		part := b[at:][:n]
		at += n
		return part
	}
	pad := func() { take(-at & 3) }
	for {
		header := take(110)
		require.Equal(t, "070701", string(header[:6]))
		field := func(i int) uint64 {
			v, err := strconv.ParseUint(string(header[6+8*i:][:8]), 16, 32)
			require.NoError(t, err)
			return v
		}
		name := take(int(field(11)))
		pad()
		m := member{string(name[:len(name)-1]), field(1), string(take(int(field(6))))}
		pad()
		if m.name == "TRAILER!!!" {
			require.Equal(t, len(b), at)
			return all
		}
		all = append(all, m)
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := newArchive(&b)
	require.NoError(t, a.file("usr/bin/x", 0o755, []byte("12345")))
	require.NoError(t, a.symlink("usr/y", "bin/x"))
	require.NoError(t, a.dir("usr"))
	require.NoError(t, a.file("z", 0o600, nil))
	require.NoError(t, a.close())
	require.Equal(t, []member{
		{"usr", 0o40755, ""},
		{"usr/bin", 0o40755, ""},
		{"usr/bin/x", 0o100755, "12345"},
		{"usr/y", 0o120777, "bin/x"},
		{"z", 0o100600, ""},
	}, readArchive(t, b.Bytes()))
}

func TestSeries(t *testing.T) {
	for _, s := range []Series{Linux612, Linux61} {
		name, err := s.metaPackage()
		require.NoError(t, err)
		require.NotEmpty(t, name)
	}
	_, err := Build(t.Context(), "2.4")
	require.ErrorContains(t, err, "2.4")
}

func TestModuleName(t *testing.T) {
	require.Equal(t, "virtio_net", moduleName("kernel/drivers/net/virtio-net.ko"))
	require.Equal(t, "ib_core", moduleName("ib_core"))
	_, err := dependencies([]byte("no module"))
	require.Error(t, err)
	_, err = (&kernel{image: make([]byte, 100)}).vmlinux(t.Context())
	require.Error(t, err)
	_, err = (&kernel{image: make([]byte, 0x250)}).vmlinux(t.Context())
	require.Error(t, err)
}
