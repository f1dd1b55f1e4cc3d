package machine

import (
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestMain is a process that a test looks for, or runs the tests and looks for leaks.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	os.Exit(leak.Main(m))
}
