package sockmap

import (
	"os"
	"testing"

	"github.com/smcgw/smcgw/internal/testnet/apps"
	"github.com/smcgw/smcgw/internal/testnet/leak"
)

func TestMain(m *testing.M) {
	apps.Init()
	os.Exit(leak.Main(m))
}
