package ebpf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigValidate(t *testing.T) {
	require.NoError(t, Config{}.Validate())
	err := Config{Generation: 12, Mode: 7, BlackholeAfter: -1, MaxFlows: 1, MaxDatagrams: 1}.Validate()
	for _, part := range []string{"generation", "mode", "fallback", "max_flows", "max_datagrams"} {
		require.ErrorContains(t, err, part)
	}
}
