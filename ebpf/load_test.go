package ebpf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every program passes the verifier, well below its limit: the verifier of an
// older kernel may need more steps for the same program.
func TestVerifier(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	h.do(func() {
		spec, err := loadSmcgw()
		require.NoError(t, err)
		objs := new(objects)
		require.NoError(t, verifierErrorOrNil(spec.LoadAndAssign(objs, nil)))
		defer func() { require.NoError(t, objs.Close()) }()
		for name, p := range objs.programs() {
			info, err := p.Info()
			require.NoError(t, err)
			n, ok := info.VerifiedInstructions()
			require.True(t, ok)
			t.Logf("%-15s %d verified instructions", name, n)
			require.Less(t, n, uint32(100_000), name)
		}
	})
}

func verifierErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return verifierError(err)
}
