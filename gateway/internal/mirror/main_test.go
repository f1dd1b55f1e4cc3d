package mirror_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind. Beside the loops, which keep their processors
// while they are busy, four goroutines are the libraries.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(8)
	os.Exit(leak.Main(m))
}
