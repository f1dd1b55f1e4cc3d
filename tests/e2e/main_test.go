package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/quicapp"
)

// binary is the smcgw the suite tests: built once, from this tree.
var binary string

func TestMain(m *testing.M) {
	if err := becomeSandboxed(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	apps.Init(append(quicapp.Apps(), privateApp)...)
	dir, err := buildBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := leak.Main(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// buildBinary builds smcgw into a directory the caller removes. SMCGW_RACE=1
// builds it with the race detector.
func buildBinary() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "smcgw-e2e-"); err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "smcgw")
	args := []string{"build", "-o", binary}
	if os.Getenv("SMCGW_RACE") != "" {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/smcgw/smcgw/cmd/smcgw")...).CombinedOutput()
	if err != nil {
		return dir, fmt.Errorf("build smcgw: %w\n%s", err, out)
	}
	return dir, nil
}
