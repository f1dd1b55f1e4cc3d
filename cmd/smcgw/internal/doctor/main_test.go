package doctor

import (
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
