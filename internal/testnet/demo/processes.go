package demo

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// daemons returns the processes of the gateway: the guardian is the one that
// was started, the daemon its child.
func (g *host) daemons() []int {
	var pids []int
	for _, pid := range g.Processes() {
		if parentOf(pid) == g.proc.Pid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf reads the fourth field of /proc/PID/stat, behind the name in
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

func kill(pid int) error { return unix.Kill(pid, unix.SIGKILL) }
