package rogue

import (
	"os"
	"testing"

	"github.com/smcgw/smcgw/internal/testnet/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
