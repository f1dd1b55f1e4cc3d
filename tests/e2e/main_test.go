package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/smcgw/smcgw/internal/testnet/apps"
	"github.com/smcgw/smcgw/internal/testnet/leak"
)

// binary is the smcgw the suite tests: built once, from this tree.
var binary string

func TestMain(m *testing.M) {
	apps.Init()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "smcgw-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "smcgw")
	build := exec.Command("go", "build", "-o", binary, "github.com/smcgw/smcgw/cmd/smcgw")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build smcgw: %v\n%s", err, out)
		return 1
	}
	return leak.Main(m)
}
