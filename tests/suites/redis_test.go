package suites

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// redis has units of Redis' own tests.
var redis = []suite{
	ordered(redisUnits("types", 300, "unit/type/string", "unit/type/incr", "unit/type/list", "unit/type/list-2", "unit/type/list-3",
		"unit/type/set", "unit/type/zset", "unit/type/hash", "unit/type/stream", "unit/type/stream-cgroups"), "Blocking XREADGROUP: swapped DB, key doesn't exist",
		"Blocking XREADGROUP: swapped DB, key is not a stream", "Blocking XREADGROUP: key deleted", "Blocking XREADGROUP: flushed DB"),
	redisUnits("commands", 300, "unit/auth", "unit/protocol", "unit/keyspace", "unit/scan", "unit/info", "unit/info-command",
		"unit/sort", "unit/expire", "unit/other", "unit/multi", "unit/quit", "unit/acl", "unit/pubsub", "unit/pubsubshard",
		"unit/slowlog", "unit/introspection", "unit/introspection-2", "unit/limits", "unit/obuf-limits", "unit/wait", "unit/pause",
		"unit/querybuf", "unit/pendingquerybuf", "unit/tracking", "unit/networking", "unit/scripting"),
	redisUnits("integration", 50, "integration/replication", "integration/block-repl", "integration/redis-cli", "integration/redis-benchmark",
		"integration/shutdown", "integration/failover"),
}

// ordered returns a suite with tests that need an order between two connections.
func ordered(s suite, tests ...string) suite {
	s.ordered = tests
	return s
}

// redisUnits runs units in one run, with Debian's servers.
func redisUnits(name string, least int, units ...string) suite {
	return suite{
		name: "redis/" + name, limit: 30 * time.Minute, least: least,
		needs: []string{"redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "tclsh8.6", "dpkg-source"},
		run: func(r *round) results {
			r.source("redis", "tests", "tests")
			require.NoError(r, os.Mkdir(filepath.Join(r.dir, "src"), 0o755))
			for _, program := range []string{"redis-server", "redis-cli", "redis-benchmark", "redis-check-aof"} {
				require.NoError(r, os.Symlink("/usr/bin/"+program, filepath.Join(r.dir, "src", program)))
			}
			args := []string{"tests/test_helper.tcl", "--durable", "--clients", "4", "--timeout", "1200"}
			for _, unit := range units {
				args = append(args, "--single", unit)
			}
			said, err := r.output(r.command("tclsh8.6", args...))
			if err != nil {
				r.Logf("%v: %s", err, tail(said))
			}
			return redisResults(said)
		},
	}
}

// redisLine matches the line of a test that has ended. One that failed names its file.
var redisLine = regexp.MustCompile(`(?m)^(?:\x1b\[[\d;]*m)?\[(?:\x1b\[[\d;]*m)*(ok|err|skip|ignore|exception)(?:\x1b\[[\d;]*m)*\]: (.*)$`)

var redisSuffix = regexp.MustCompile(` \(\d+ ms\)$| in tests/\S+\.tcl$`)

// redisResults collects all results of a name, as tests in several units share names.
func redisResults(said string) results {
	all := map[string][]string{}
	for _, m := range redisLine.FindAllStringSubmatch(said, -1) {
		name := redisSuffix.ReplaceAllString(m[2], "")
		all[name] = append(all[name], m[1])
	}
	got := results{}
	for name, each := range all {
		slices.Sort(each)
		got[name] = strings.Join(each, " ")
	}
	return got
}
