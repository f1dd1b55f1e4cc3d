package bench

import (
	"os"
	"testing"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) {
	apps.Init(Apps()...)
	os.Exit(leak.Main(m))
}
