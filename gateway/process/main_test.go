package process

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/smcgw/smcgw/lab/leak"
)

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	switch os.Getenv(confineVariable) {
	case "":
	case "settle":
		os.Exit(settled())
	default:
		os.Exit(confined())
	}
	if os.Getenv(lastsEnv) != "" {
		time.Sleep(time.Second)
		os.Exit(0)
	}
	if os.Getenv(succeedEnv) != "" {
		fmt.Println(CanSucceed())
		os.Exit(0)
	}
	os.Exit(leak.Main(m))
}
