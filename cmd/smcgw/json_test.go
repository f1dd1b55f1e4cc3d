package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// shapes collects what fields documents have, and of which types.
type shapes map[string]string

// add walks a value. Elements of a list are alike, and so are the values of an object whose
// names are data.
func (s shapes) add(at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			s.add(at+"."+name, field)
		}
	case []any:
		s[at] = "list"
		for _, element := range v {
			s.add(at+"[]", element)
		}
	case string:
		s[at] = "string"
	case float64:
		s[at] = "number"
	case bool:
		s[at] = "bool"
	case nil:
		s[at] = cmp.Or(s[at], "null")
	}
}

// documents reads what a verb has printed.
func documents(t *testing.T, out []byte) shapes {
	t.Helper()
	s := shapes{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var doc map[string]any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return s
		}
		require.NoError(t, err, "%s", out)
		require.Regexp(t, `^smcgw\.[a-z_]+/v\d+$`, doc["schema"], "%s", out)
		s.add("", doc)
	}
}

// jsonExample is how a verb is called for its document.
type jsonExample struct {
	args   []string
	status int
}

// jsonExamples has one for every verb with --json, by its name.
func jsonExamples(t *testing.T, dir string) map[string]jsonExample {
	t.Helper()
	file, gone := filepath.Join(dir, "smcgw.yaml"), filepath.Join(dir, "gone.yaml")
	for name, text := range map[string]string{"usr/lib/smcgw/libsmcgw.so": "", "usr/lib/smcgw/lib64/libsmcgw.so": "", "etc/systemd/system/redis.service": "[Service]\n"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.WriteFile(file, []byte("policy: [{ match: { ports: [80] }, action: accelerate }]\nmdoe: off\n"), 0o600))
	require.NoError(t, os.WriteFile(gone, fmt.Appendf(nil, "{ admin: %[1]s/gone, shm_dir: %[1]s/shm }", dir), 0o600))
	return map[string]jsonExample{
		"status": {}, "stats": {}, "peers": {}, "devices": {args: []string{"--counters"}}, "version": {}, "policy": {},
		"conns": {args: []string{"--all", "-o", "wide"}}, "codes": {args: []string{"peer_no_option"}},
		"watch": {args: []string{"-n", "3"}}, "top": {args: []string{"-n", "1", "--interval", "100ms"}},
		"reload": {}, "off": {}, "on": {}, "peers flush": {}, "set": {args: []string{"log.level", "debug"}},
		"demote": {args: []string{"--all"}}, "check": {args: []string{"-c", file}, status: exitFindings},
		"cleanup": {args: []string{"-c", gone, "--socket", filepath.Join(dir, "gone")}}, "doctor": {}, "ping": {args: []string{"127.0.0.1:1", "--count", "1"}, status: exitFailed},
		"bugreport":      {args: []string{"-o", filepath.Join(dir, "report.tar.gz")}},
		"run":            {args: []string{"--", "true"}},
		"preload enable": {args: []string{"redis", "--root", dir}}, "preload disable": {args: []string{"redis", "--root", dir}}, "preload": {args: []string{"--root", dir}},
		"drain": {}, // the last one: there is no daemon after it
	}
}

// TestEveryJSON: each verb with --json prints documents with a schema, whose fields and
// types are those of testdata/json.golden: fields are added only. bench has its documents
// checked where it measures.
func TestEveryJSON(t *testing.T) {
	testnet.Require(t, "root")
	d, cfg := serveFake(t, "")
	go d.happen(t.Context())
	examples := jsonExamples(t, t.TempDir())
	world := func() (e *env, stdout, stderr *bytes.Buffer) {
		e, stdout, stderr = testEnv()
		e.machineOff, e.host = admin.NewOffFlag(t.TempDir()), healthyHost()
		e.rdma = func() (sysfs.RDMA, error) { return sampleRDMA(), nil }
		e.gateways = func(context.Context) ([]machine.Found, error) { return nil, nil }
		return e, stdout, stderr
	}
	found := map[string]shapes{}
	call := func(name string) {
		x := examples[name]
		e, stdout, stderr := world()
		args := append(strings.Fields(name), "--json")
		c, _, err := newRoot(e).Find(strings.Fields(name))
		require.NoError(t, err)
		if c.Flags().Lookup("socket") != nil {
			args = append(args, "--socket", cfg.Admin)
		}
		require.Equal(t, x.status, run(t.Context(), e, append(args, x.args...)), "%s: %s%s", name, stdout, stderr)
		printed := stdout.Bytes()
		if name == "run" {
			printed = stderr.Bytes() // standard output is the command's
		}
		found[name] = documents(t, printed)
		require.NotEmpty(t, found[name], name)
	}
	e, _, _ := world()
	for _, path := range commandPaths(newRoot(e)) {
		name := strings.Join(path, " ")
		c, _, err := newRoot(e).Find(path)
		require.NoError(t, err)
		if c.Flags().Lookup("json") == nil || name == "bench" || name == "drain" {
			continue
		}
		require.Contains(t, examples, name, "a verb with --json needs an example")
		call(name)
	}
	call("drain")
	require.Len(t, found, len(examples))
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&b, "== smcgw %s --json\n", name)
		for _, field := range slices.Sorted(maps.Keys(found[name])) {
			fmt.Fprintf(&b, "%s %s\n", strings.TrimPrefix(field, "."), found[name][field])
		}
	}
	golden.File(t, "json.golden", b.String())
}
