package main

import (
	"context"
	"os"
)

func main() { os.Exit(run(context.Background(), osEnv(), os.Args[1:])) }
