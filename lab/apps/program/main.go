// Command program is package apps as a static binary, for containers that contain nothing else.
package main

import (
	"os"

	"github.com/smcgw/smcgw/lab/apps"
)

func main() { os.Exit(apps.Main(os.Args[1:], os.Stdin, os.Stdout)) }
