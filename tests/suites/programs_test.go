package suites

import (
	"path/filepath"
	"regexp"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
)

// programs are servers and runtimes, with clients that verify what they get. Debian's MariaDB (liburing) and
// stress-ng make system calls of their own, so a daemon leaves them native; the rows "unscanned" show what the
// library does nevertheless.
var programs = []suite{
	{
		name: "memcached", limit: 20 * time.Minute, least: 50, needs: []string{"memcached", "/usr/bin/memccapable", "/usr/bin/python3.11"},
		run: func(r *round) results {
			r.start(r.command("memcached", "-l", "127.0.0.1", "-p", "11311", "-m", "512", "-I", "2m", "-t", "4"), "127.0.0.1:11311")
			got := results{}
			r.check(got, r.command("/usr/bin/python3.11", r.script("memcached.py"), "11311"))
			said, _ := r.output(r.command("/usr/bin/memccapable", "-h", "127.0.0.1", "-p", "11311", "-t", "20"))
			for _, m := range memcapableLine.FindAllStringSubmatch(said, -1) {
				got[m[1]] = m[2]
			}
			return got
		},
	},
	{
		name: "java", limit: 20 * time.Minute, least: 4, needs: []string{"java", "javac"},
		run: func(r *round) results {
			return r.checked(r.command("java", r.script("Java.java")))
		},
	},
	{
		name: "node", limit: 20 * time.Minute, least: 4, needs: []string{"node"},
		run: func(r *round) results {
			return r.checked(r.command("node", r.script("node.js")))
		},
	},
	{
		name: "node/net", limit: 30 * time.Minute, least: 150, needs: []string{"node", "dpkg-source"},
		run: func(r *round) results {
			r.source("nodejs", "test", "test") // of Debian's version: with another some tests fail natively, too
			return r.checked(r.command("bash", r.script("node-net.sh")))
		},
	},
	{name: "mariadb/unscanned", limit: 20 * time.Minute, least: 8, needs: mariadbNeeds, unscanned: true, run: mariadb},
	{name: "mariadb/native", limit: 20 * time.Minute, least: 8, needs: mariadbNeeds, stays: inprocess.WhyRawCalls, run: mariadb},
	{name: "mysql-test", limit: 30 * time.Minute, least: 80, needs: []string{"/usr/sbin/mariadbd", "/usr/share/mysql/mysql-test/mariadb-test-run.pl", "mariadb-test"}, unscanned: true, run: mysqlTest},
	{name: "stress-ng/unscanned", limit: 20 * time.Minute, least: 9, needs: []string{"stress-ng"}, unscanned: true, run: stressNG},
	{name: "stress-ng/native", limit: 20 * time.Minute, least: 9, needs: []string{"stress-ng"}, stays: inprocess.WhyRawCalls, run: stressNG},
}

var memcapableLine = regexp.MustCompile(`(?m)^((?:ascii|binary) [\w ]+?)\s+\[(\w+)\]`)

var mariadbNeeds = []string{"/usr/sbin/mariadbd", "mariadb-install-db", "mysqlslap", "mysqldump"}

func mariadb(r *round) results {
	data := filepath.Join(r.dir, "data")
	said, err := r.output(r.command("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db"))
	require.NoError(r, err, tail(said))
	r.start(r.command("/usr/sbin/mariadbd", "--no-defaults", "--datadir="+data, "--socket="+filepath.Join(r.dir, "sock"), "--pid-file="+filepath.Join(r.dir, "pid"),
		"--port=3307", "--bind-address=127.0.0.1", "--max-allowed-packet=64M", "--innodb-flush-log-at-trx-commit=0"), "127.0.0.1:3307")
	return r.checked(r.command("bash", r.script("mariadb.sh")))
}

func mysqlTest(r *round) results { return r.checked(r.command("bash", r.script("mysql-test.sh"))) }

func stressNG(r *round) results { return r.checked(r.command("bash", r.script("stress-ng.sh"))) }
