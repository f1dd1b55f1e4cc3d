package ebpf

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// clockVariable makes the test binary a process that prints its clock.
const clockVariable = "SMCGW_CLOCK"

// TestClockInATimeNamespace: what a time namespace adds, or takes away, is not in the
// clock that the programs and the gateway share.
func TestClockInATimeNamespace(t *testing.T) {
	if os.Getenv(clockVariable) != "" {
		fmt.Println(Now())
		os.Exit(0)
	}
	testnet.Require(t, "root", "unshare")
	up := int64(Now() / 1e9)
	for _, offset := range []int64{0, 1_000_000, -up / 2} {
		cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--monotonic", strconv.FormatInt(offset, 10),
			os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), clockVariable+"=1")
		before := Now()
		out, err := cmd.Output()
		require.NoError(t, err, "%s", out)
		line, _, _ := strings.Cut(string(out), "\n")
		at, err := strconv.ParseUint(line, 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, before, "offset %d", offset)
		require.LessOrEqual(t, at, Now(), "offset %d", offset)
	}
}
