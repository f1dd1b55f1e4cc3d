package process

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCongestion(t *testing.T) {
	for _, tc := range []struct {
		now, allowed string
		paces        bool
		unpaced      string
	}{
		{"bbr\n", "reno bbr\n", true, "reno"},
		{"bbr3\n", "reno cubic bbr3\n", true, "cubic"},
		{"cubic\n", "reno cubic\n", false, "cubic"},
		{"dctcp\n", "reno cubicle dctcp\n", false, "reno"},
		{"", "", false, "reno"},
	} {
		paces, unpaced := congestion(func(name string) string {
			return map[string]string{"tcp_congestion_control": tc.now, "tcp_allowed_congestion_control": tc.allowed}[name]
		})
		require.Equal(t, []any{tc.paces, tc.unpaced}, []any{paces, unpaced}, tc)
	}
	_, unpaced := Congestion()
	require.Contains(t, []string{"reno", "cubic"}, unpaced)
}
