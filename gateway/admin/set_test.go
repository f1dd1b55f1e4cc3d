package admin

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeSettings takes log.level only.
type fakeSettings struct {
	mu  sync.Mutex
	set []Setting
}

func (f *fakeSettings) Set(field, value string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if field != "log.level" {
		return errors.New(field + ": no such setting")
	}
	f.set = append(f.set, Setting{field, value})
	return nil
}

func TestSettings(t *testing.T) {
	a := startAdmin(t, nil)
	_, err := a.client.Set(t.Context(), Setting{"log.level", "debug"})
	require.EqualError(t, err, "answer of the daemon: this gateway has no settings")
	a.stop()

	settings := &fakeSettings{}
	a = startAdminWith(t, nil, func(s *Server) { s.Settings = settings })
	res, err := a.client.Set(t.Context(), Setting{"log.level", "debug"})
	require.NoError(t, err)
	require.Equal(t, Result{Schema: ResultSchema, Verb: "set", Message: "log.level is debug until the configuration is read again"}, res)
	_, err = a.client.Set(t.Context(), Setting{"mode", "off"})
	require.EqualError(t, err, "answer of the daemon: mode: no such setting")
	require.Equal(t, []Setting{{"log.level", "debug"}}, settings.set)
}
