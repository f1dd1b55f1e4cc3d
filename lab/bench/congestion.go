package bench

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// allowedCC lists the defaults that are permitted in namespaces other than the initial one.
const (
	allowedCC = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
	defaultCC = "/proc/sys/net/ipv4/tcp_congestion_control"
)

// congestion returns the congestion control for all hosts: the wanted one, or by default the machine's own, so that
// hosts without a gateway are as users have them. If the kernel does not permit the wanted one in namespaces,
// congestion permits it until restore is called. The only other effect is that unprivileged programs can choose it,
// too.
func congestion(want string) (name string, restore func(), err error) {
	restore = func() {}
	if want == "" {
		b, err := os.ReadFile(defaultCC)
		if err != nil {
			return "", restore, fmt.Errorf("congestion control: %w", err)
		}
		want = strings.TrimSpace(string(b))
	}
	b, err := os.ReadFile(allowedCC)
	if err != nil {
		return "", restore, fmt.Errorf("congestion control: %w", err)
	}
	if slices.Contains(strings.Fields(string(b)), want) {
		return want, restore, nil
	}
	before := strings.TrimSpace(string(b))
	if err := os.WriteFile(allowedCC, []byte(before+" "+want), 0); err != nil {
		return "", restore, fmt.Errorf("congestion control %s: %w", want, err)
	}
	return want, func() { _ = os.WriteFile(allowedCC, []byte(before), 0) }, nil
}

// pacing returns a congestion control other than [Usual]: bbr, which paces, or else the one that every kernel has.
func pacing() string {
	const available = "/proc/sys/net/ipv4/tcp_available_congestion_control"
	if b, err := os.ReadFile(available); err == nil && slices.Contains(strings.Fields(string(b)), "bbr") {
		return "bbr"
	}
	return "reno"
}

// used collects what a report must say about what was used: the congestion control of the programs' sockets by variant,
// and remarks.
type used struct {
	mu   sync.Mutex
	by   map[string][]string // variants by congestion control, in the order in which they came
	said []string
}

// say adds a remark once.
func (u *used) say(remark string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Contains(u.said, remark) {
		u.said = append(u.said, remark)
	}
}

func (u *used) add(variant, congestion string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.by == nil {
		u.by = map[string][]string{}
	}
	if !slices.Contains(u.by[congestion], variant) {
		u.by[congestion] = append(u.by[congestion], variant)
	}
}

// notes returns the notes for a report. It returns none if no program reported a congestion control.
func (u *used) notes() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []string
	for _, cc := range slices.Sorted(maps.Keys(u.by)) {
		list = append(list, fmt.Sprintf("%s of %s", cc, strings.Join(slices.Sorted(slices.Values(u.by[cc])), ", ")))
	}
	all := slices.Clone(u.said)
	if len(list) > 0 {
		all = append(all, "congestion control of the sockets of iperf3: "+strings.Join(list, "; "))
	}
	return all
}
