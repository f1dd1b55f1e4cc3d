package main

import (
	"context"
	"os"

	"github.com/smcgw/smcgw/internal/testnet/apps"
)

// main is also the ordinary programs of the demonstration, which starts them
// under a variable of the environment.
func main() {
	apps.Init()
	os.Exit(run(context.Background(), osEnv(), os.Args[1:]))
}
