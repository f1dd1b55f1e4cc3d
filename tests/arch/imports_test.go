package arch

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// allowed says which packages of ours each package may import; the packages
// that are missing here may not exist. A name that ends in "/..." stands for
// everything below it too.
var allowed = map[string][]string{
	"cmd/smcgw":                    {"gateway", "gateway/admin", "gateway/config", "gateway/report", "gateway/faults", "gateway/guardian", "gateway/machine", "gateway/process", "cmd/smcgw/internal/...", "ebpf/inspect", "ebpf/witness", "inprocess/...", "lab/faults", "internal/comparison", "internal/nearest", "verbs/hw/sysfs", "internal/procfs"}, // the last with a build tag of tests only
	"cmd/smcgw/internal/screen":    {},
	"cmd/smcgw-lab":                {"internal/comparison", "lab/..."},
	"gateway":                      {"ebpf", "gateway/admin", "gateway/config", "gateway/report", "gateway/faults", "gateway/internal/...", "gateway/page", "gateway/process", "internal/fdpass", "negotiate", "netstack/...", "packet", "rmb", "verbs", "verbs/shm", "verbs/hw/sysfs"},
	"gateway/admin":                {"inprocess", "gateway/config", "gateway/report", "gateway/process", "negotiate", "verbs/hw/sysfs"},
	"gateway/config":               {"gateway/report", "internal/nearest"},
	"gateway/report":               {"inprocess", "negotiate"},
	"gateway/faults":               {},
	"gateway/guardian":             {"gateway/process", "ebpf", "internal/fdpass", "internal/procfs"},
	"gateway/process":              {"ebpf/legs", "internal/procfs"},
	"gateway/internal/loop":        {"internal/due", "verbs"},
	"gateway/internal/promotion":   {"ebpf", "ebpf/witness", "gateway/config", "gateway/report", "gateway/internal/policy", "inprocess", "inprocess/broker", "inprocess/scan", "internal/procfs", "negotiate"},
	"gateway/internal/host":        {"ebpf", "ebpf/legs"},
	"gateway/internal/peers":       {"gateway/config", "gateway/report", "gateway/process", "negotiate"},
	"gateway/internal/carrier":     {"gateway/config", "gateway/report", "gateway/internal/loop", "gateway/internal/peers", "negotiate", "rmb", "rsocket", "verbs/..."},
	"gateway/internal/mirror":      {"gateway/config", "gateway/report", "gateway/internal/carrier", "gateway/internal/loop", "gateway/internal/peers", "inprocess", "inprocess/shared", "negotiate", "rmb", "rsocket"},
	"gateway/internal/beyond":      {"gateway/config", "gateway/internal/carrier", "gateway/internal/loop", "gateway/internal/mirror", "gateway/internal/peers", "inprocess", "inprocess/broker", "inprocess/shared", "negotiate", "negotiate/between"},
	"gateway/page":                 {"gateway/report", "inprocess", "negotiate"},
	"gateway/machine":              {"gateway/admin", "gateway/config", "gateway/process", "internal/procfs"},
	"gateway/internal/connlog":     {"gateway/config", "gateway/report", "negotiate"},
	"gateway/internal/conn":        {"ebpf", "ebpf/legs", "gateway/config", "gateway/report", "gateway/faults", "gateway/internal/host", "gateway/internal/carrier", "gateway/internal/connlog", "gateway/internal/flow", "gateway/internal/loop", "gateway/internal/peers", "gateway/internal/policy", "gateway/process", "negotiate", "netstack", "rmb", "rsocket", "verbs"},
	"gateway/internal/flow":        {"gateway/report", "negotiate"},
	"gateway/internal/handover":    {"ebpf", "gateway/admin", "gateway/config", "gateway/report", "gateway/faults", "gateway/process"},
	"gateway/internal/legs":        {"gateway/internal/host", "gateway/process", "ebpf/legs", "internal/sockaddr"},
	"gateway/internal/guard":       {"gateway/config", "gateway/report", "ebpf", "negotiate"},
	"gateway/internal/policy":      {"gateway/config", "gateway/report", "ebpf"},
	"ebpf":                         {"ebpf/inspect", "ebpf/legs", "ebpf/internal/...", "internal/fdpass", "packet", "internal/procfs"},
	"ebpf/inspect":                 {"ebpf", "ebpf/internal/netdev", "ebpf/internal/policy"},
	"ebpf/internal/netdev":         {},
	"ebpf/witness":                 {},
	"ebpf/internal/policy":         {},
	"ebpf/internal/proof":          {"ebpf/internal/netdev", "ebpf/legs", "internal/procfs", "internal/sockaddr"},
	"ebpf/internal/sockdiag":       {},
	"ebpf/legs":                    {"internal/fdpass"},
	"inprocess":                    {},
	"inprocess/shared":             {"inprocess"},
	"inprocess/broker":             {"inprocess", "inprocess/shared", "internal/fdpass", "internal/procfs"},
	"inprocess/private":            {"inprocess", "inprocess/broker", "internal/fdpass"},
	"inprocess/adopt":              {"inprocess/scan"},
	"inprocess/scan":               {"internal/procfs"},
	"internal/fdpass":              {},
	"netstack":                     {"netstack/internal/...", "netstack/link", "netstack/minisock", "packet"},
	"netstack/internal/segment":    {"packet"},
	"netstack/minisock":            {"netstack/internal/segment", "packet"},
	"negotiate":                    {"negotiate/internal/clc"},
	"negotiate/internal/clc":       {},
	"negotiate/between":            {"negotiate", "negotiate/internal/clc"},
	"negotiate/resolve":            {"negotiate", "negotiate/internal/clc"},
	"packet":                       {},
	"rsocket/socket":               {"rmb", "rsocket", "rsocket/cm/...", "rsocket/internal/...", "verbs"},
	"internal/golden":              {},
	"internal/due":                 {},
	"internal/nearest":             {},
	"internal/procfs":              {},
	"internal/sockaddr":            {},
	"verbs":                        {},
	"verbs/...":                    {"verbs"},
	"inprocess/internal/model":     {},
	"verbs/hw/sysfs":               {"internal/procfs", "verbs"},
	"verbs/hw/rdmacm":              {"verbs"},
	"verbs/shm":                    {"internal/fdpass", "verbs", "verbs/internal/..."},
	"verbs/soft":                   {"internal/due", "verbs", "verbs/internal/...", "verbs/soft/wire", "internal/sockaddr"},
	"verbs/soft/wire":              {},
	"verbs/hw":                     {"verbs", "verbs/hw/ibv", "verbs/internal/...", "internal/procfs"},
	"verbs/hw/ibv":                 {"verbs"},
	"verbs/hw/hwtest":              {"lab/loop", "verbs", "verbs/hw/ibv", "verbs/soft"},
	"verbs/verbstest":              {"lab/loop", "verbs"},
	"rmb":                          {"verbs"},
	"rsocket":                      {"rmb", "verbs"},
	"cmd/smcgw/internal/doctor":    {"ebpf", "ebpf/inspect", "gateway/config", "gateway/report", "gateway/process", "inprocess/scan", "verbs/hw/sysfs", "internal/procfs"},
	"cmd/smcgw/internal/bugreport": {"ebpf/inspect", "gateway/admin", "gateway/config", "gateway/report"},
	"netstack/link":                {},
	"rsocket/cm":                   {"internal/due", "verbs"},
	"rsocket/cm/kernel":            {"rsocket/cm", "verbs", "verbs/hw/rdmacm"},
	"rsocket/internal/resolution":  {"rsocket", "verbs"},
	"rsocket/internal/vector":      {"verbs"},
	"gateway/internal/datagram":    {"gateway/config", "gateway/report", "gateway/internal/carrier", "gateway/internal/loop", "ebpf", "negotiate", "negotiate/resolve", "packet", "rsocket", "verbs", "verbs/shm", "internal/sockaddr"},
	// A measurement on real hosts, which asks the gateways beside it.
	"cmd/smcgw/internal/bench": {"gateway/admin", "gateway/config", "gateway/report", "inprocess", "internal/comparison", "negotiate", "internal/procfs"},
	"internal/comparison":      {},
	"lab/...":                  {"lab/...", "internal/due", "packet", "internal/procfs", "internal/sockaddr"},
	"lab/rogue":                {"negotiate", "rsocket", "verbs/...", "lab/...", "packet"},
	"lab/demo":                 {"gateway/admin", "gateway/report", "internal/comparison", "lab/..."},
	"lab/loop":                 {"verbs"},
	"lab/wire":                 {"internal/due", "netstack/link"},
	"lab/twohosts":             {"ebpf", "packet"},
	"lab/faults":               {"gateway/faults"},
	"lab/bench":                {"gateway/admin", "gateway/config", "gateway/report", "internal/comparison", "ebpf/witness", "inprocess/...", "verbs", "verbs/soft", "lab/...", "internal/procfs", "internal/sockaddr"},
	"lab/daemon":               {"gateway/admin", "lab/testnet"},

	"tests/...": {"inprocess", "inprocess/broker", "inprocess/scan", "gateway/...", "ebpf", "netstack/...", "negotiate", "verbs/...", "rmb", "ebpf/inspect", "internal/comparison", "internal/procfs", "lab/...", "tests/...", "negotiate/resolve", "packet", "rsocket/..."},
}

// allowedInTests is what test files of every package may import beyond that:
// help for tests, and the devices to test on.
var allowedInTests = []string{"internal/due", "internal/fdpass", "internal/golden", "internal/procfs", "internal/sockaddr", "lab/...", "verbs/..."}

// matches tells whether a directory is meant by a name of the table.
func matches(dir, name string) bool {
	if parent, ok := strings.CutSuffix(name, "/..."); ok {
		return under(dir, parent)
	}
	return dir == name
}

func matchesAny(dir string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return matches(dir, name) })
}

// allowedFor finds a package's line in the table, its own before a common one.
func allowedFor(dir string) ([]string, bool) {
	if names, ok := allowed[dir]; ok {
		return names, true
	}
	for name, names := range allowed {
		if strings.HasSuffix(name, "/...") && matches(dir, name) {
			return names, true
		}
	}
	return nil, false
}

func knownPackages(tr *tree) (problems []string) {
	for _, dir := range tr.packages() {
		if _, ok := allowedFor(dir); !ok {
			problems = append(problems, dir+": a package that the architecture does not have")
		}
	}
	return problems
}

func ownImports(tr *tree) (problems []string) {
	for _, f := range tr.files {
		names, ok := allowedFor(f.dir)
		if !ok {
			continue
		}
		for _, imp := range f.imports() {
			dir, own := strings.CutPrefix(imp, module+"/")
			switch {
			case imp == module:
				problems = append(problems, fmt.Sprintf("%s: imports the module's root", f.path))
			case !own, dir == f.dir, matchesAny(dir, names):
			case f.test && matchesAny(dir, allowedInTests):
			default:
				problems = append(problems, fmt.Sprintf("%s: imports %s, which %s may not", f.path, dir, f.dir))
			}
		}
	}
	return problems
}

// fence keeps modules of others where they belong: a file may import a path
// that begins with prefix only if one of the patterns matches the file. A
// pattern that ends in a slash is a directory with everything below.
type fence struct {
	prefix   string
	patterns []string
}

// testOnly are the places of code that runs in tests only.
var testOnly = []string{"*_test.go", "lab/leak/", "verbs/verbstest/", "tests/"}

var fences = []fence{
	{"C", []string{"verbs/hw/ibv/"}}, // what cgo binds to, which make build leaves out
	{"gvisor.dev/gvisor", []string{"netstack/", "lab/wire/"}},
	{"github.com/cilium/ebpf", []string{"ebpf/", "lab/", "tests/e2e/ipoib_test.go"}},
	{"github.com/vishvananda", []string{"ebpf/", "gateway/process/", "gateway/internal/beyond/", "gateway/internal/promotion/", "verbs/hw/sysfs/", "cmd/smcgw/internal/doctor/", "lab/", "tests/e2e/ipoib_test.go"}},
	{"github.com/prometheus", []string{"gateway/page/metrics*.go"}},
	{"github.com/spf13", []string{"cmd/*/*.go"}},
	{"github.com/coreos/go-systemd", []string{"gateway/process/"}},
	{"kernel.org/pub/linux/libs/security/libcap", []string{"gateway/process/"}},
	{"testing", append([]string{"internal/golden/", "lab/"}, testOnly...)},
	{"github.com/stretchr/testify", testOnly},
	{"github.com/google/go-cmp", testOnly},
	{"github.com/rogpeppe/go-internal", testOnly},
	{"go.uber.org/goleak", testOnly},
	{"pgregory.net/rapid", testOnly},
	{"golang.org/x/net/nettest", testOnly},
	{"github.com/HdrHistogram", []string{"cmd/smcgw/internal/bench/"}},
	{"golang.org/x/net/quic", []string{"lab/quicapp/"}},
}

func (f fence) admits(file string) bool {
	return slices.ContainsFunc(f.patterns, func(p string) bool {
		if strings.HasSuffix(p, "/") {
			return strings.HasPrefix(file, p)
		}
		name := file
		if !strings.Contains(p, "/") {
			name = path.Base(file)
		}
		ok, err := path.Match(p, name)
		return err == nil && ok
	})
}

func otherImports(tr *tree) (problems []string) {
	for _, f := range tr.files {
		for _, imp := range f.imports() {
			for _, fence := range fences {
				if under(imp, fence.prefix) && !fence.admits(f.path) {
					problems = append(problems, fmt.Sprintf("%s: imports %s, which belongs to %s",
						f.path, imp, strings.Join(fence.patterns, " ")))
				}
			}
		}
	}
	return problems
}

func unsafeFiles(tr *tree) (problems []string) {
	for _, f := range tr.files {
		base := strings.TrimSuffix(strings.TrimSuffix(f.path, ".go"), "_test")
		if slices.Contains(f.imports(), "unsafe") && !f.generated && !strings.HasSuffix(base, "_unsafe") {
			problems = append(problems, f.path+": unsafe outside of a file named *_unsafe.go")
		}
		if strings.Contains(string(f.text), "\n//go:linkname ") && !strings.HasSuffix(base, "_unsafe") {
			problems = append(problems, f.path+": linkname outside of a file named *_unsafe.go")
		}
	}
	return problems
}
