package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

func TestAccountOf(t *testing.T) {
	require.Equal(t, config.Account{User: "smcgw", Groups: []string{"smcgw", "a", "b"}}, accountOf("User=smcgw\nGroup=smcgw\nSupplementaryGroups=a b\n"))
	require.Equal(t, config.Account{}, accountOf("User=\nGroup=\nSupplementaryGroups=\n"))
}

// TestKeysOfTheService: root can read keys that the service cannot; only the file of the service is its.
func TestKeysOfTheService(t *testing.T) {
	testnet.Require(t, "root")
	dir := t.TempDir()
	key, file := filepath.Join(dir, "psk"), filepath.Join(dir, "smcgw.yaml")
	require.NoError(t, os.WriteFile(key, []byte("0123456789abcdef"), 0o600))
	require.NoError(t, os.WriteFile(file, []byte("security: { psk_file: "+key+" }"), 0o600))
	check := func(service string) (int, string) {
		e, stdout, _ := testEnv()
		e.rdma = func() (sysfs.RDMA, error) { return sysfs.RDMA{}, nil }
		e.service, e.runsAs = service, func() config.Account { return config.Account{User: "nobody"} }
		return run(t.Context(), e, []string{"check", "-q", "-c", file}), stdout.String()
	}
	status, said := check(file)
	require.Equal(t, exitFindings, status)
	require.Contains(t, said, "security.psk_file: key file: open "+key+": permission denied")
	status, said = check("/another/file")
	require.Equal(t, exitOK, status)
	require.Empty(t, said)
}
