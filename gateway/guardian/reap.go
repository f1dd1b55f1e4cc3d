package guardian

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// reapOthers reaps children that have ended, except but, for which another goroutine waits:
// the keepers of the legs are children of the guardian, and in a container so is every
// orphaned process.
func reapOthers(but int) {
	for _, pid := range procfs.Children(os.Getpid()) {
		if pid != but {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
