package legs

import (
	"fmt"
	"os"
	"testing"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/lab/leak"
)

// keeperVerb makes this program a keeper of legs, and keeper4Verb one whose kernel has no IPv6.
const (
	keeperVerb  = "keep-legs"
	keeper4Verb = "keep-legs-without-ipv6"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	if len(os.Args) != 2 || os.Args[1] != keeperVerb && os.Args[1] != keeper4Verb {
		os.Exit(leak.Main(m))
	}
	var err error
	if os.Args[1] == keeper4Verb {
		err = loseIPv6()
	}
	if err == nil {
		err = legs.Serve(nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
