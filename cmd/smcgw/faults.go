//go:build !smcgw_faults

package main

import "github.com/smcgw/smcgw/gateway/faults"

// injector returns none; see faults_injected.go.
func injector() (faults.Injector, error) { return nil, nil }
