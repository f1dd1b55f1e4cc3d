package socket

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A peer that says its last word and goes, while this side goes on sending: whatever fails here meanwhile, the reader
// finds all bytes and the end.
func TestLastWordsBeforeTheError(t *testing.T) {
	for name, open := range duos {
		t.Run(name, func(t *testing.T) {
			d := open(t, StackConfig{})
			for i := range 30 {
				x, y := d.pair(ConnConfig{})
				var writers sync.WaitGroup
				writers.Go(func() {
					buf := make([]byte, 1+i*100)
					for {
						if _, err := y.Write(buf); err != nil {
							if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
								t.Errorf("write: %v", err)
							}
							return
						}
					}
				})
				total := 1 + i*3000
				n, err := x.Write(pattern[:total])
				require.NoError(t, err)
				require.Equal(t, total, n)
				require.NoError(t, x.Close())
				require.NoError(t, y.SetReadDeadline(time.Now().Add(patience)))
				got, err := io.ReadAll(y)
				require.NoError(t, err, "after %d of %d bytes", len(got), total)
				require.Equal(t, pattern[:total], got)
				writers.Wait()
				require.NoError(t, y.Close())
			}
		})
	}
}
