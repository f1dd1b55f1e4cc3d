package adapter

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs/hw"
)

// TestAbsence checks the error of opening an adapter that cannot be opened.
func TestAbsence(t *testing.T) {
	class := os.Getenv(AbsenceVariable)
	want, ok := map[string]error{
		"ErrNoDevice": hw.ErrNoDevice, "ErrProviderAbsent": hw.ErrProviderAbsent, "ErrLibraryAbsent": hw.ErrLibraryAbsent,
	}[class]
	require.True(t, ok, class)
	_, err := hw.Open(hw.Config{Adapter: os.Getenv(Variable)})
	require.ErrorIs(t, err, want)
	t.Log(err)
}
