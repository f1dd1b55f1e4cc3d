package guardian

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// reapOthers forgets children that have ended, but for one, for which another waits: the
// keepers of the legs are children of the guardian, and in a container so is every
// process that has lost its parent.
func reapOthers(but int) {
	for _, pid := range procfs.Children(os.Getpid()) {
		if pid != but {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
