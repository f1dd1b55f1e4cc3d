package gateway

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
)

func TestSetLogLevel(t *testing.T) {
	g := &gateway{logLevel: new(slog.LevelVar)}
	require.NoError(t, g.Set(admin.Setting{Name: "log.level", Value: "debug"}))
	require.Equal(t, slog.LevelDebug, g.logLevel.Level())
	for _, bad := range []admin.Setting{{Name: "log.level", Value: "loud"}, {Name: "log", Value: "debug"}} {
		require.ErrorIs(t, g.Set(bad), admin.ErrSetting)
	}
	require.Equal(t, slog.LevelDebug, g.logLevel.Level())
	require.ErrorIs(t, (&gateway{}).Set(admin.Setting{Name: "log.level", Value: "info"}), admin.ErrSetting)
}
