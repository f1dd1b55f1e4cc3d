package conn

import (
	"flag"
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	// Those that are parallel wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(leak.Main(m))
}
