package loop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// streamDriver moves a stream until it has been asked often enough.
type streamDriver struct {
	fakeDriver
	left int
}

func (d *streamDriver) Streams() bool {
	d.left--
	return d.left >= 0
}

// TestNap: in a stream the shard sleeps without being armed, and looks again; afterwards it is armed.
func TestNap(t *testing.T) {
	d := &streamDriver{left: 2}
	s := idleShard(t, &fakeDriver{}, d)
	events := make([]unix.EpollEvent, 4)
	for range 2 {
		now := time.Now()
		s.wait(events, now, now, false, false)
		require.Zero(t, d.arms.Load())
	}
	now := time.Now()
	s.wait(events, now, now, false, false)
	require.Equal(t, int64(1), d.arms.Load())
	s.DropDriver(d)
	require.False(t, s.streams())
	require.Negative(t, d.left)
}
