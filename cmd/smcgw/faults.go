//go:build !smcgw_faults

package main

import "github.com/smcgw/smcgw/gateway"

// faults are none; see faults_injected.go.
func faults() (gateway.Faults, error) { return nil, nil }
