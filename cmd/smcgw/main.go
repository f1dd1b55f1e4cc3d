package main

import (
	"context"
	"os"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/bench"
)

// main is also the ordinary programs of the demonstration and of benchmarks, which
// start them under a variable of the environment.
func main() {
	apps.Init(bench.Apps()...)
	os.Exit(run(context.Background(), osEnv(), os.Args[1:]))
}
