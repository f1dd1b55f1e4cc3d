package doctor

import (
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/procfs"
)

// limitOf returns the hard limit of the process that counts; -1: none.
func (e *exam) limitOf(name string) (int64, bool) {
	text, _ := e.text(e.process() + "/limits")
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, name+" ")
		fields := strings.Fields(rest) // soft, hard, unit
		if !found || len(fields) < 2 {
			continue
		}
		if fields[1] == "unlimited" {
			return -1, true
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		return n, err == nil
	}
	return 0, false
}

// descriptors checks the limit on open files.
func descriptors(e *exam) []Line {
	remedy := "LimitNOFILE=1048576 in the unit; ulimit -Hn in a shell"
	if e.Daemon == nil {
		remedy = "nothing for the packaged unit, which has LimitNOFILE=1048576; else raise it by ulimit -Hn"
	}
	most, found := e.limitOf("Max open files")
	want := int64(e.Config.Limits.MaxFlows) + process.OwnDescriptors
	switch {
	case !found:
		return []Line{warning(remedy, "the limit on open files could not be read")}
	case most >= 0 && most <= process.OwnDescriptors:
		return []Line{failure(remedy, "%s may have %d open files: too few for the gateway itself", e.subjectName(), most)}
	case most >= 0 && most < want:
		return []Line{warning(remedy+"; or lower limits.max_flows", "%s may have %d open files: %d connections can be carried instead of %d (limits.max_flows)",
			e.subjectName(), most, most-process.OwnDescriptors, e.Config.Limits.MaxFlows)}
	}
	return []Line{ok("%s may have %s open files, %d are enough", e.subjectName(), limitText(most), want)}
}

func limitText(n int64) string {
	if n < 0 {
		return "any number of"
	}
	return strconv.FormatInt(n, 10)
}

// enoughMemlock is less than the connections of an adapter lock with default limits.
const enoughMemlock = 1 << 30

// memlock checks the limit on locked memory, which only adapters need.
func memlock(e *exam) []Line {
	most, found := e.limitOf("Max locked memory")
	switch {
	case !found:
		return []Line{warning("see ulimit -l", "the limit on locked memory could not be read")}
	case most < 0 || most >= enoughMemlock:
		return []Line{ok("%s may lock enough memory for adapters", e.subjectName())}
	case e.holds(capIPCLock) || e.Daemon == nil && e.holds(capSysResource):
		return []Line{ok("%s may lock %d KiB of memory, and more by its capabilities", e.subjectName(), most>>10)}
	}
	if rdma, err := e.host.RDMA(); e.Config.UsesAdapters() && err == nil && len(rdma.Adapters) > 0 {
		return []Line{warning("LimitMEMLOCK=infinity in the unit; ulimit -l unlimited in a shell",
			"%s may lock %d KiB of memory: connections beyond it do not use RDMA adapters (no_memory)", e.subjectName(), most>>10)}
	}
	return []Line{ok("%s may lock %d KiB of memory; only RDMA adapters need more, and this host has none in use", e.subjectName(), most>>10)}
}

// otherMemory is what a gateway needs besides limits.memory and the memory of each connection.
const otherMemory = 100 << 20

// memoryMax returns the limit of the daemon's control group, if it has one.
func (e *exam) memoryMax() (int64, bool) {
	groups, _ := e.text(e.process() + "/cgroup")
	group, found := procfs.Cgroup(groups)
	if !found || e.Daemon == nil || e.cgroup == "" {
		return 0, false
	}
	return e.number(path.Join(strings.TrimPrefix(e.cgroup, "/"), group, "memory.max")) // false for "max"
}

// memory compares limits.memory with what the host and the service allow.
func memory(e *exam) []Line {
	limit := int64(e.Config.Limits.Memory)
	if most, found := e.memoryMax(); found && most < limit+otherMemory {
		return []Line{warning("raise MemoryMax of its service, or lower limits.memory",
			"limits.memory is %d MiB, and a gateway takes %d MiB and 16 KiB for each connection besides: its control group may have %d MiB", limit>>20, otherMemory>>20, most>>20)}
	}
	text, _ := e.text("proc/meminfo")
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, "MemAvailable:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil || kib < 0 || kib > math.MaxInt64>>10 {
			break
		}
		if free := kib << 10; free < limit && e.Daemon == nil {
			return []Line{warning("lower limits.memory", "limits.memory is %d MiB, of which the host has %d MiB available", limit>>20, free>>20)}
		}
		return []Line{ok("limits.memory is %d MiB, the host has %d MiB available", limit>>20, kib>>10)}
	}
	return []Line{ok("limits.memory is %d MiB; the host's memory is unknown", limit>>20)}
}
