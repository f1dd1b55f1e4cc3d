package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// allowedCC is what namespaces other than the first may have as their default.
const (
	allowedCC = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
	defaultCC = "/proc/sys/net/ipv4/tcp_congestion_control"
)

// congestion returns the congestion control that all hosts get: the one that is
// wanted, or else the machine's own, so that off is what users have. Where the
// kernel does not allow namespaces the one that is wanted it is told to, until
// restore is called: that only lets unprivileged programs choose it too.
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
