package ebpf

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/ebpf/legs"
)

// keeperVerb makes this program a keeper of a namespace for legs.
const keeperVerb = "keep-legs"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == keeperVerb {
		if err := legs.Serve(nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Tests mostly wait for the kernel: for what it takes to end a namespace or a program.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// newLegs makes a namespace for legs; it is the caller's to close.
func newLegs(t testing.TB) *legs.Namespace {
	t.Helper()
	conn, err := legs.Start([]string{os.Args[0], keeperVerb})
	require.NoError(t, err)
	ns, err := legs.Open(conn)
	require.NoError(t, err)
	return ns
}

// object and kernelTypes are read once for all tests: under the race detector that takes longer
// than the verifier does.
var (
	object      = sync.OnceValues(loadSmcgw)
	kernelTypes = btf.NewCache()
)

// withLegs is cfg with a namespace that lives as long as the test, and with what is read once.
func withLegs(t testing.TB, cfg Config) Config {
	t.Helper()
	cfg.kernelTypes, cfg.parse = kernelTypes, func() (*bpf.CollectionSpec, error) {
		spec, err := object()
		return spec.Copy(), err
	}
	cfg.Legs = newLegs(t)
	t.Cleanup(func() { _ = cfg.Legs.Close() })
	return cfg
}

// legsOf is the namespace of a datapath's legs.
func legsOf(t testing.TB, d *Datapath) *host {
	return &host{t: t, ns: netns.NsHandle(d.cfg.Legs.File().Fd())}
}
