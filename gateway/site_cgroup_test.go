package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// TestSiteNeedsACgroup: a cgroup_path elsewhere is refused before anything is attached.
func TestSiteNeedsACgroup(t *testing.T) {
	cfg := config.Config{Mode: report.ModeEnforce, CgroupPath: t.TempDir()}.WithDefaults()
	_, err := openSite(cfg, nil, nil, RunOptions{})
	require.EqualError(t, err, "cgroup_path: "+cfg.CgroupPath+" is no directory of cgroup2")
}
