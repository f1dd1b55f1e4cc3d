package interop

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
)

// suite ends the guests after the tests, before leaks are counted.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	closeLabs()
	return code
}

func TestMain(m *testing.M) {
	apps.Init()
	if our, peer, ok := strings.Cut(os.Getenv(childVariable), " "); ok {
		fmt.Println(child(our, peer))
		os.Exit(1)
	}
	os.Exit(leak.Main(suite{m}))
}
