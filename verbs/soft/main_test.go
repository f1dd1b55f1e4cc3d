package soft

import (
	"flag"
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) {
	// Those that are parallel wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(leak.Main(m))
}
