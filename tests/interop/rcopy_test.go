package interop

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rcopySize returns the size of the copied file, which is no multiple of anything.
func rcopySize() int64 {
	if thorough() {
		return 256<<20 + 4321
	}
	return 8<<20 + 4321
}

// rcopyPatience returns the deadline of a copy at 3 MB/s.
func rcopyPatience() time.Time {
	return time.Now().Add(time.Minute + time.Duration(rcopySize()/3)*time.Microsecond)
}

// TestRcopy copies a large file and compares checksums. The program serves IPv4 only, and takes host names but no
// IPv6 addresses.
func TestRcopy(t *testing.T) { eachKernel(t, rcopies) }

func rcopies(t *testing.T, l *lab) {
	const file, hostName = "/tmp/file", "our.side"
	size := rcopySize()
	for _, path := range l.paths() {
		t.Run(path.name+" program connects", func(t *testing.T) {
			out := l.run(t, "sh", "-c", "echo "+path.our.String()+" "+hostName+" >/etc/hosts;"+
				"head -c "+strconv.FormatInt(size, 10)+" /dev/urandom >"+file+"; sha256sum "+file)
			accept := l.stack(t, path).listen(rcopyPort)
			program := l.start(t, "rcopy", file, hostName+":/there")
			conn := accept()
			require.NoError(t, conn.SetDeadline(rcopyPatience()))
			sum := sha256.New()
			name, err := rcopyServe(conn, sum)
			require.NoError(t, err)
			require.Equal(t, "/there", name)
			require.Equal(t, strings.Fields(out)[0], hex.EncodeToString(sum.Sum(nil)))
			require.NoError(t, conn.Close())
			ended(t, program)
			require.Contains(t, program.Output(), strconv.FormatInt(size, 10)+" bytes in ")
		})
	}
	path := l.paths()[0]
	t.Run(path.name+" program serves", func(t *testing.T) {
		l.start(t, "rcopy")
		conn := l.stack(t, path).dial(rcopyPort)
		require.NoError(t, conn.SetDeadline(rcopyPatience()))
		sum := sha256.New()
		require.NoError(t, rcopySend(conn, file, io.TeeReader(rand.NewChaCha8([32]byte{1}), sum), size))
		require.NoError(t, conn.Close())
		require.Equal(t, hex.EncodeToString(sum.Sum(nil)), strings.Fields(l.run(t, "sha256sum", file))[0])
	})
}
