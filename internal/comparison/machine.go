package comparison

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ThisMachine describes the machine as it is now. What cannot be determined remains empty. An empty congestion control
// means the system's default.
func ThisMachine(congestionControl string) Machine {
	m := Machine{
		CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, GoVersion: runtime.Version(),
		CongestionControl: congestionControl, Time: time.Now().Round(0),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU = cpuModel(text("/proc/cpuinfo"))
	first, _, _ := strings.Cut(text("/proc/loadavg"), " ")
	m.Load1, _ = strconv.ParseFloat(first, 64) // 0 if unknown
	if m.CongestionControl == "" {
		m.CongestionControl = strings.TrimSpace(text("/proc/sys/net/ipv4/tcp_congestion_control"))
	}
	return m
}

// text returns the contents of a kernel file, or "" if it cannot be read.
func text(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(b)
}

// cpuModel returns the model of the first processor.
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
