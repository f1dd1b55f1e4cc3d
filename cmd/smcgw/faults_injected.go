//go:build smcgw_faults

package main

import (
	"os"

	"github.com/smcgw/smcgw/gateway"
	lab "github.com/smcgw/smcgw/lab/faults"
)

// faults are those of the environment, in a program that only tests build.
func faults() (gateway.Faults, error) { return lab.Parse(os.Environ()) }
