package suites

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/tests/interop/guest"
)

// sources tells apt where to find Debian's sources, whatever else the machine uses.
const sources = `Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb-src
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

// source unpacks the source of a Debian package, unless it is in the cache directory, and copies a part of it to the
// round's directory.
func (r *round) source(name, part, to string) {
	r.Helper()
	cache, err := guest.CacheDir()
	require.NoError(r, err)
	at := filepath.Join(cache, "sources", name)
	require.NoError(r, os.MkdirAll(filepath.Dir(at), 0o755))
	unlock, err := guest.Lock(r.ctx, at+".lock")
	require.NoError(r, err)
	defer unlock()
	if _, err := os.Stat(at); err != nil {
		require.NoError(r, r.unpack(name, at))
	}
	into := filepath.Join(r.dir, to)
	script := `cp -r --no-preserve=ownership "$1" "$2" && chown -R "$3" "$2"`
	out, err := exec.CommandContext(r.ctx, "sh", "-c", script, "sh", filepath.Join(at, part), into, fmt.Sprint(r.user())).CombinedOutput()
	require.NoError(r, err, "%s", out)
}

// unpack has apt fetch a package's source, which apt verifies.
func (r *round) unpack(name, at string) error {
	dir, err := os.MkdirTemp(filepath.Dir(at), "apt")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"parts", "lists/partial", "preferences"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "parts", "debian.sources"), []byte(sources), 0o644); err != nil {
		return err
	}
	apt := "apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$PWD/parts" +
		" -o Dir::Etc::PreferencesParts=$PWD/preferences -o Dir::State::Lists=$PWD/lists "
	for _, script := range []string{
		apt + "update",
		apt + "source --download-only " + name + " || " + apt + "source --download-only " + name + "/bookworm", // for mirrors that lack the security updates
		"dpkg-source --no-check -x *.dsc unpacked",                                                             // apt has verified it
	} {
		c := exec.CommandContext(r.ctx, "sh", "-c", script)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
	}
	return os.Rename(filepath.Join(dir, "unpacked"), at)
}
