package socket

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Reading and writing allocates nothing.
func TestConnAllocations(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		go echo(b)
		buf := make([]byte, 3000)
		round := func() {
			if _, err := a.Write(buf); err != nil {
				require.NoError(t, err)
			}
			if _, err := io.ReadFull(a, buf); err != nil {
				require.NoError(t, err)
			}
		}
		for range 100 {
			round() // queues and tables of the device grow at first
		}
		require.Zero(t, int(testing.AllocsPerRun(500, round)))
		require.NoError(t, a.Close())
		waitFor(t, "no end", b.done)
	})
}

func echo(c *Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			break
		}
		if _, err = c.Write(buf[:n]); err != nil {
			break
		}
	}
	_ = c.Close()
}
