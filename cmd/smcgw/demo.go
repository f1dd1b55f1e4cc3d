package main

import "github.com/spf13/cobra"

// demoVerbs lists the verbs that need package testnet.
func demoVerbs() []func(*env) *cobra.Command { return nil }
