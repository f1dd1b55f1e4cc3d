package testnet

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Children lists the processes that live on the host and were started by parent.
func (h *Host) Children(parent int) []int {
	var pids []int
	for _, pid := range h.Processes() {
		if parentOf(pid) == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ChildrenAnywhere lists the processes that parent has started, in whatever namespace
// they live.
func ChildrenAnywhere(parent int) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parentOf(pid) == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf reads the fourth field of /proc/PID/stat, after the name in
// brackets; 0 if the process is gone.
func parentOf(pid int) (ppid int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	text := string(b)
	var state string
	if _, err := fmt.Sscan(text[strings.LastIndexByte(text, ')')+1:], &state, &ppid); err != nil {
		return 0
	}
	return ppid
}
