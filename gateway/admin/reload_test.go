package admin

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
)

func TestAdminReload(t *testing.T) {
	a := startAdmin(t, nil)
	r, err := a.client.Reload(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "reload", r.Verb)
	require.Equal(t, []string{"reload"}, a.ctl.taken())
	a.ctl.breakWith(errors.New("line 3: mdoe: unknown field"))
	_, err = a.client.Reload(t.Context(), false)
	require.ErrorContains(t, err, "line 3: mdoe: unknown field")
	a.ctl.breakWith(nil)
}

// A refusal says what puts the configuration in force.
func TestAdminReloadRemedies(t *testing.T) {
	a := startAdmin(t, nil)
	for _, tt := range []struct {
		err       error
		want, not string
	}{
		{errFake, errFake.Error(), "smcgw"},
		{fmt.Errorf("devices: %w", config.ErrRestart), "devices: takes a restart", "drain"},
		{fmt.Errorf("admin: %w", config.ErrStop), "smcgw drain --socket " + a.cfg.Admin + " ends this gateway", "--replace"},
		{errors.Join(config.ErrRestart, config.ErrStop), "smcgw drain --socket " + a.cfg.Admin, "--replace"},
	} {
		a.ctl.breakWith(tt.err)
		for _, replace := range []bool{false, true} {
			_, err := a.client.Reload(t.Context(), replace)
			require.ErrorIs(t, err, errRefused)
			require.ErrorContains(t, err, tt.want)
			require.NotContains(t, err.Error(), tt.not)
		}
	}
	a.ctl.breakWith(nil)
}

// A reload says which way it took, and has a deadline.
func TestAdminReplace(t *testing.T) {
	a := startAdmin(t, nil)
	r, err := a.client.Reload(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, "a new gateway has taken over", r.Message)
	require.Equal(t, []string{"replace"}, a.ctl.taken())
}

// The service manager ends no reload that is about to have an answer.
func TestServiceWaitsForReload(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/smcgw.service")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^TimeoutStartSec=(\d+)$`).FindSubmatch(unit)
	require.NotNil(t, found, "the default is 90 s")
	seconds, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	require.Greater(t, time.Duration(seconds)*time.Second, reloadLimit+clientTimeout)
}
