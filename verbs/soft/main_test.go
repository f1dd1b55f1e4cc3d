package soft

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	before := openFDs()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		if after := openFDs(); after > before+4 { // epoll and friends of the runtime
			fmt.Fprintf(os.Stderr, "%d file descriptors before, %d after\n", before, after)
			code = 1
		}
	}
	os.Exit(code)
}

func openFDs() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}
