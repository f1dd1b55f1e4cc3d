//go:build smcgw_faults

package main

import (
	"os"

	"github.com/smcgw/smcgw/gateway/faults"
	lab "github.com/smcgw/smcgw/lab/faults"
)

// injector reads the environment, in a program that is built only for tests.
func injector() (faults.Injector, error) { return lab.Parse(os.Environ()) }
