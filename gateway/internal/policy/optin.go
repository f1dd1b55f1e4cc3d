package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// OptInRule is the name under which connections of opt-ins are counted.
const OptInRule = "run"

// maxOptIns bounds the concurrent opt-ins.
const maxOptIns = 8

// literal escapes the special characters of cgroup patterns.
var literal = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// OptIn puts the rule of an opt-in in force, ahead of all others, until end is called. mount is where this gateway has
// cgroup2 mounted.
func (ts *Trials) OptIn(o config.OptIn, mount string) (end func(), err error) {
	if !path.IsAbs(o.Cgroup) || path.Clean(o.Cgroup) != o.Cgroup || o.Cgroup == "/" {
		return nil, fmt.Errorf("%w: %q is not the path of a cgroup", config.ErrOptIn, o.Cgroup)
	}
	var st unix.Stat_t
	if err := unix.Stat(path.Join(mount, o.Cgroup), &st); err != nil || st.Ino != o.ID {
		return nil, fmt.Errorf("%w: the gateway does not see the cgroup %s: it runs in another cgroup namespace, or has cgroup_path", config.ErrOptIn, o.Cgroup)
	}
	rule := &ebpf.Rule{Cgroups: []string{literal.Replace(o.Cgroup)}, Action: ebpf.ActionAccelerate, Share: ebpf.ShareAll}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	held := *ts.held.Load()
	if len(ts.ahead) >= maxOptIns || len(ts.ahead)+len(ts.rules)+len(held) >= ebpf.MaxRules {
		return nil, fmt.Errorf("%w: no room for one more rule", config.ErrOptIn)
	}
	before := ts.ahead
	ts.ahead = append(slices.Clone(before), rule)
	if err := ts.holdLocked(held); err != nil {
		ts.ahead = before
		return nil, err
	}
	return func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		ts.ahead = slices.DeleteFunc(slices.Clone(ts.ahead), func(r *ebpf.Rule) bool { return r == rule })
		_ = ts.holdLocked(*ts.held.Load()) // on failure the datapath is gone, with the gateway
	}, nil
}

// Ahead returns how many rules of opt-ins precede those of the configuration.
func (ts *Trials) Ahead() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.ahead)
}
