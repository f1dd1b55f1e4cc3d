// Command program is package visit as a static file, for containers.
package main

import (
	"os"

	"github.com/smcgw/smcgw/lab/visit"
)

func main() { os.Exit(visit.Main(os.Args[1:], os.Stdout)) }
