package config

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// FuzzConfig: no input may panic; an error names the file's problems as
// FieldErrors; what is accepted is valid and survives being printed.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte(fullConfig))
	f.Add([]byte("carriers: []\n"))
	f.Add([]byte("policy: [{name: 'off'}, {name: '1'}]\n"))
	f.Add([]byte("policy: [{match: {users: [redis, 7, '0x7']}}]"))
	f.Add([]byte("policy: [{match: {peers: ['::ffff:1.2.3.4']}}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? {a: b}\n: c"))
	f.Add([]byte("mode: !!binary b2Zm\n<<: {shards: 3}\n"))
	f.Add([]byte("admin: \"/a\\0b\"\nstate_dir: '/\t'\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := parsePeer(string(data)); err == nil {
			require.Equal(t, p.Masked(), p)
		}
		file, err := parseConfig("f", data, testUsers)
		if err != nil {
			require.NotEmpty(t, FieldErrors(err))
			return
		}
		require.Empty(t, file.Config.validate())
		out, err := file.YAML()
		require.NoError(t, err)
		requireSameMeaning(t, file, out)
	})
}

// FuzzParseShare: what is accepted is a share, and reads back.
func FuzzParseShare(f *testing.F) {
	for _, text := range []string{"", "0", "10%", "0.5", "100", "1e2%", "-1", "NaN", "0x1p-2"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseShare(text)
		if err != nil {
			return
		}
		require.True(t, s == NoShare || s > 0 && s <= AllShare, "%d", s)
		again, err := ParseShare(s.String())
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

// TestTruncatedShares: a share cut anywhere is an error or another share.
func TestTruncatedShares(t *testing.T) {
	const text = "12.25%"
	for i := range text {
		s, err := ParseShare(text[:i])
		require.True(t, err != nil || s > 0 && s < AllShare, "%q", text[:i])
	}
}

// TestTruncatedConfigs: a file cut anywhere is an error or a smaller
// configuration, never a panic.
func TestTruncatedConfigs(t *testing.T) {
	for i := range len(fullConfig) {
		if _, err := parseConfig("f", []byte(fullConfig[:i]), testUsers); err != nil {
			require.NotEmpty(t, FieldErrors(err), "%q", fullConfig[:i])
		}
	}
}

func FuzzParseCarrier(f *testing.F) {
	for _, text := range []string{"soft", "rdma-soft", "relay", "rdma-sotf", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCarrier(text)
		require.Equal(t, err == nil, slices.Contains(report.Carriers(), c))
	})
}
