package guardian

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// FuzzPacket: daemon and guardian trust each other, but either may be of
// another version after an upgrade: what cannot be a message is an error, and no
// file that came with it stays open.
func FuzzPacket(f *testing.F) {
	f.Add([]byte{msgProtect}, uint8(2))
	f.Add([]byte{msgHold, 1, 2, 3}, uint8(fdpass.MaxFiles))
	f.Add([]byte{msgAck}, uint8(0))
	f.Add([]byte{}, uint8(1))
	f.Add([]byte{0xff}, uint8(250))
	f.Fuzz(func(t *testing.T, body []byte, files uint8) {
		near, far, err := socketPair()
		require.NoError(t, err)
		defer near.Close()
		defer far.Close()
		end, file, err := os.Pipe()
		require.NoError(t, err)
		defer end.Close()
		fds := make([]int, min(int(files), 250)) // what the kernel takes
		for i := range fds {
			fds[i] = int(file.Fd())
		}
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		sent := unix.Sendmsg(int(far.Fd()), body[:min(len(body), 4096)], oob, nil, unix.MSG_DONTWAIT)
		require.NoError(t, far.Close())
		require.NoError(t, file.Close())
		if sent != nil {
			return
		}
		p, err := receivePacket(near)
		require.Equal(t, len(fds) > fdpass.MaxFiles || len(body) > 1+maxNotify, errors.Is(err, fdpass.ErrTooLong))
		if err != nil {
			requireEnd(t, end)
			return
		}
		if len(body) > 0 { // files alone take a byte along
			require.Equal(t, body[0], p.kind)
		}
		require.Len(t, p.files, len(fds))
		p.close()
		requireEnd(t, end)
	})
}

// requireEnd waits for the end of a pipe, which comes when no descriptor of its
// other end is left. A child that starts meanwhile has one until it executes its program.
func requireEnd(t *testing.T, pipe *os.File) {
	t.Helper()
	require.NoError(t, pipe.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := pipe.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "a file that came with the packet is open")
}
