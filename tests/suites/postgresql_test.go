package suites

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/stretchr/testify/require"
)

// postgresqlDir is where Debian installs PostgreSQL.
const postgresqlDir = "/usr/lib/postgresql/15"

// postgresql runs PostgreSQL's regression tests with a server that listens on TCP only.
var postgresql = []suite{{
	name: "postgresql", limit: 30 * time.Minute, least: 200,
	needs: []string{postgresqlDir + "/bin/postgres", postgresqlDir + "/lib/pgxs/src/test/regress/pg_regress", "/usr/include/postgresql/15/server/postgres.h", "gcc", "dpkg-source"},
	run: func(r *round) results {
		r.source("postgresql-15", "src/test/regress", "regress")
		regress, data := filepath.Join(r.dir, "regress"), filepath.Join(r.dir, "data")
		out, err := exec.CommandContext(r.ctx, "gcc", "-O2", "-fPIC", "-shared", "-I/usr/include/postgresql/15/server",
			"-o", filepath.Join(regress, "regress.so"), filepath.Join(regress, "regress.c")).CombinedOutput()
		require.NoError(r, err, "%s", out)
		for _, module := range []string{"refint.so", "autoinc.so"} {
			out, err := exec.CommandContext(r.ctx, "cp", filepath.Join(postgresqlDir, "lib", module), regress).CombinedOutput()
			require.NoError(r, err, "%s", out)
		}
		said, err := r.output(r.command(postgresqlDir+"/bin/initdb", "-D", data, "--no-locale", "--encoding=UTF8", "--auth=trust", "--no-sync"))
		require.NoError(r, err, said)
		r.start(r.command(postgresqlDir+"/bin/postgres", "-D", data, "-p", "5432", "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "fsync=off"), "127.0.0.1:5432")
		c := r.command(postgresqlDir+"/lib/pgxs/src/test/regress/pg_regress", "--bindir="+postgresqlDir+"/bin", "--dlpath="+regress,
			"--host=127.0.0.1", "--port=5432", "--max-concurrent-tests=20", "--schedule=parallel_schedule")
		c.Dir = regress
		said, err = r.output(c)
		if err != nil {
			r.Logf("%v: %s", err, tail(said))
		}
		got := results{}
		for _, m := range postgresqlLine.FindAllStringSubmatch(said, -1) {
			got[m[1]] = m[2]
		}
		return got
	},
}}

var postgresqlLine = regexp.MustCompile(`(?m)^(?:test)?\s+(\S+)\s+\.\.\. (ok|FAILED|failed \(ignored\))`)
