package config

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogSettings(t *testing.T) {
	was := Config{}.WithDefaults().Log
	require.Equal(t, Log{Level: LogInfo, Format: LogAuto, Access: AccessOff}, was)
	for _, c := range []struct {
		field, value string
		want         Log
	}{
		{"log.level", "debug", Log{LogDebug, LogAuto, AccessOff}},
		{"log.access", "carried", Log{LogInfo, LogAuto, AccessCarried}},
	} {
		got, err := was.With(c.field, c.value)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, c := range [][2]string{
		{"log.level", "loud"},
		{"log.level", ""},
		{"log.access", "some"},
		{"log.format", "json"},
		{"mode", "off"},
		{"", ""},
	} {
		_, err := was.With(c[0], c[1])
		wrong, ok := errors.AsType[*FieldError](err)
		require.True(t, ok, c)
		require.Equal(t, c[0], wrong.Path)
	}
}

// FuzzLogSetting: whatever is asked for, what comes of it is a log that a file could ask for.
func FuzzLogSetting(f *testing.F) {
	for _, field := range LogSettings() {
		f.Add(field, "debug")
		f.Add(field, "12")
	}
	f.Fuzz(func(t *testing.T, field, value string) {
		c := Config{}.WithDefaults()
		var err error
		if c.Log, err = c.Log.With(field, value); err != nil {
			return
		}
		require.Empty(t, c.validate())
	})
}

func TestAccessLog(t *testing.T) {
	for text, want := range map[string]string{
		`log: { access: some }`: `"some" is not one of off, carried or all`,
		`log: { access: off }`:  "", // no boolean
	} {
		_, err := parseConfig("x.yaml", []byte(text), nil)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}
