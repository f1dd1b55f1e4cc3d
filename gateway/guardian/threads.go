package guardian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/smcgw/smcgw/internal/procfs"
)

// threadsShown bounds the threads listed in a log line.
const threadsShown = 16

// daemonProc returns the /proc directory of the process behind a pidfd, from "Pid:" of its
// fdinfo (pidfd_open(2)), which is -1 once the process has ended.
func daemonProc(pidfd int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
	for line := range strings.Lines(string(text)) {
		if pid, ok := strings.CutPrefix(line, "Pid:"); ok {
			return "/proc/" + strings.TrimSpace(pid)
		}
	}
	return "/proc/-1"
}

// busyTimes returns how long each thread of a process has run or waited for a processor, by
// thread ID (proc_pid_schedstat(5)). A wait is counted once it has ended. The kernel may not
// keep these counts at all.
func busyTimes(proc string) map[string]time.Duration {
	times := map[string]time.Duration{}
	dirs, _ := filepath.Glob(filepath.Join(proc, "task", "[0-9]*"))
	for _, dir := range dirs {
		text, _ := os.ReadFile(filepath.Join(dir, "schedstat"))
		var ran, waited int64
		if n, _ := fmt.Sscan(string(text), &ran, &waited); n == 2 {
			times[filepath.Base(dir)] = time.Duration(ran + waited)
		}
	}
	return times
}

// busySince returns how long the threads of a process, all together, have run or waited for a
// processor since they had the times in then. A runnable thread whose time has not changed
// has waited throughout, so it counts for all of since. So does a thread in
// TASK_UNINTERRUPTIBLE: it waits for a lock that another holds, for example the one on routes
// and devices while many change, and no signal ends that wait sooner.
func busySince(proc string, then map[string]time.Duration, since time.Duration) (sum time.Duration) {
	for id, now := range busyTimes(proc) {
		moved := now - then[id]
		switch state := threadState(filepath.Join(proc, "task", id)); {
		case moved == 0 && state == "R", state == "D":
			moved = max(moved, since)
		}
		sum += moved
	}
	return sum
}

// threads lists the threads of a process that may keep it from its turn: those that run, or
// wait for anything but a futex or an epoll descriptor. Each text has the thread ID, the
// letter of its state (proc_pid_stat(5)) and its calls in the kernel, innermost first, as far
// as the kernel shows them to this process.
func threads(proc string) (busy []string) {
	dirs, err := filepath.Glob(filepath.Join(proc, "task", "[0-9]*"))
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		state, calls := threadState(dir), threadCalls(dir)
		if state == "S" && slices.ContainsFunc(calls, rests) {
			continue
		}
		if len(busy) == threadsShown {
			return append(busy, "...")
		}
		busy = append(busy, strings.TrimSpace(filepath.Base(dir)+" "+state+" "+strings.Join(calls, " < ")))
	}
	return busy
}

func rests(call string) bool {
	return strings.HasPrefix(call, "futex_") || strings.HasPrefix(call, "ep_poll") || call == "do_epoll_wait"
}

// threadState returns the letter of a thread's state.
func threadState(dir string) string {
	if state := procfs.StatIn(dir).State(); state != "" {
		return state
	}
	return "?"
}

// leaves reports whether a process is ending or has ended. The kernel marks every thread
// before it closes the process's descriptors.
func leaves(proc string) bool {
	const flags, exiting = 9, 0x4 // PF_EXITING
	word, err := strconv.ParseUint(procfs.StatIn(proc).Field(flags), 10, 64)
	return err != nil || word&exiting != 0
}

// threadCalls returns the calls of proc_pid_stack(5), or without permission for that, the
// call of proc_pid_wchan(5).
func threadCalls(dir string) (calls []string) {
	text, _ := os.ReadFile(filepath.Join(dir, "stack"))
	for line := range strings.Lines(string(text)) {
		if _, call, ok := strings.Cut(line, "] "); ok {
			call, _, _ = strings.Cut(strings.TrimSpace(call), "+")
			calls = append(calls, call)
		}
	}
	if len(calls) > 0 {
		return calls
	}
	if text, _ = os.ReadFile(filepath.Join(dir, "wchan")); len(text) > 0 && string(text) != "0" {
		calls = []string{string(text)}
	}
	return calls
}
