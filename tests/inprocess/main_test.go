package inprocess

import (
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	status := leak.Main(m)
	_ = os.RemoveAll(builtIn)
	os.Exit(status)
}
