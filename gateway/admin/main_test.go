package admin

import (
	"io"
	"net"
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind. With $LISTEN it listens there instead,
// until its standard input ends.
func TestMain(m *testing.M) {
	if path := os.Getenv("LISTEN"); path != "" {
		if _, err := net.Listen("unix", path); err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(leak.Main(m))
}
