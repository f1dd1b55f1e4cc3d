package visit

import (
	"errors"
	"fmt"
	"io"
	"os"
)

var errUsage = errors.New("usage: serve TAG ADDRESS... | hold ADDRESS... | forward [flags] ADDRESS... | visit -to ADDRESS [flags]")

// Main runs what the arguments name and returns its exit status.
func Main(args []string, out io.Writer) int {
	if err := run(args, out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "serve":
		return serve(args[1:], out)
	case "hold":
		return hold(args[1:], out)
	case "forward":
		return forward(args[1:], out)
	case "visit":
		return visit(args[1:], out)
	default:
		return errUsage
	}
}
