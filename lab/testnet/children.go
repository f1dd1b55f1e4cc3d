package testnet

import (
	"os"
	"strconv"

	"github.com/smcgw/smcgw/internal/procfs"
)

// Children returns the processes on the host that were started by parent.
func (h *Host) Children(parent int) []int {
	var pids []int
	for _, pid := range h.Processes() {
		if procfs.StatOf(pid).Parent() == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ChildrenAnywhere returns the processes that parent has started, in any namespace.
func ChildrenAnywhere(parent int) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && procfs.StatOf(pid).Parent() == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}
