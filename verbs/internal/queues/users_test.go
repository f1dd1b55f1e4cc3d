package queues

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestUsers: a domain closes once, when nothing is in it and it could be freed, and nothing
// is made in it after that.
func TestUsers(t *testing.T) {
	var u Users
	freed := 0
	free := func() error { freed++; return nil }
	require.NoError(t, u.Hold())
	require.NoError(t, u.Hold())
	u.Release()
	require.ErrorIs(t, u.Close(free), verbs.ErrBusy)
	u.Release()
	failed := errors.New("not now")
	require.ErrorIs(t, u.Close(func() error { return failed }), failed)
	require.NoError(t, u.Hold(), "it is open")
	u.Release()
	require.NoError(t, u.Close(free))
	require.NoError(t, u.Close(free))
	require.Equal(t, 1, freed)
	require.ErrorIs(t, u.Hold(), verbs.ErrClosed)
}
