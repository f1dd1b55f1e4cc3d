package testnet

import "github.com/smcgw/smcgw/internal/procfs"

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
