package arch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// rule is one property of the code base. It returns its violations, each a
// line that begins with where it is.
type rule struct {
	name  string
	check func(*tree) []string
}

var rules = []rule{
	{"known packages", knownPackages},
	{"imports of our packages", ownImports},
	{"imports of others", otherImports},
	{"unsafe has its own files", unsafeFiles},
	{"package comments", packageComments},
	{"exported symbols documented", exportedDocs},
	{"config fields documented", configDocs},
	{"no init functions", noInit},
	{"monotonic times", monotonicTimes},
	{"no loose ends", noLooseEnds},
	{"parsers are fuzzed", parsersFuzzed},
	{"leak checks", leakChecks},
	{"licence", licence},
	{"citations hold", citationsHold},
	{"links hold", linksHold},
	{"files named", filesNamed},
	{"the project only", projectOnly},
}

// TestInstalledDocuments: links between the documents lead somewhere where packages and
// make install put them, too.
func TestInstalledDocuments(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "make", "-C", "../..", "--no-print-directory", "install-docs", "DESTDIR="+dir, "PREFIX=/usr").CombinedOutput()
	require.NoError(t, err, "%s", out)
	tr := load(t, filepath.Join(dir, "usr/share/doc/smcgw"))
	for _, name := range []string{"README.md", "OPERATIONS.md", "operations/install.md", "reference/commands.md", "prometheus/smcgw.rules.yaml", "grafana/smcgw.json",
		"kubernetes/chart/values.yaml", "kubernetes/examples/in-process.yaml", "copyright"} {
		require.Contains(t, tr.texts, name)
	}
	require.Empty(t, linksHold(tr))
}

func TestRepository(t *testing.T) {
	tr := load(t, filepath.Join("..", ".."))
	require.Greater(t, len(tr.files), 30, "this is not the repository")
	require.Contains(t, tr.packages(), "lab/testnet")
	for _, r := range rules {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			for _, problem := range r.check(tr) {
				t.Error(problem)
			}
		})
	}
}

// TestRulesSee tries every rule on the examples of testdata: an archive in
// testdata/bad/ is named after the rule that must object, for each line of its
// comment with a problem that contains that line. No rule objects to
// testdata/good.txtar.
func TestRulesSee(t *testing.T) {
	good, _ := example(t, "testdata/good.txtar")
	for _, r := range rules {
		require.Empty(t, r.check(good), r.name)
		slug := strings.ReplaceAll(r.name, " ", "-")
		t.Run(slug, func(t *testing.T) {
			bad, want := example(t, filepath.Join("testdata", "bad", slug+".txtar"))
			require.NotEmpty(t, want)
			problems := r.check(bad)
			require.Len(t, problems, len(want), "%s", strings.Join(problems, "\n"))
			for _, w := range want {
				require.Contains(t, strings.Join(problems, "\n"), w)
			}
		})
	}
	files, err := filepath.Glob("testdata/bad/*.txtar")
	require.NoError(t, err)
	require.Len(t, files, len(rules), "an example without a rule")
}

// example unpacks an archive and returns its tree and its comment's lines. The
// marker «» in it is removed, so that an example can hold what the repository
// itself may not.
func example(t *testing.T, name string) (*tree, []string) {
	t.Helper()
	a, err := txtar.ParseFile(name)
	require.NoError(t, err)
	unmark := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("«»"), nil) }
	a.Comment = unmark(a.Comment)
	for i := range a.Files {
		a.Files[i].Data = unmark(a.Files[i].Data)
	}
	dir := t.TempDir()
	require.NoError(t, txtar.Write(a, dir))
	var lines []string
	for line := range strings.Lines(string(a.Comment)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return load(t, dir), lines
}

// TestDependencies looks at what is really linked, through every package.
func TestDependencies(t *testing.T) {
	for _, c := range []struct {
		pkg    string
		banned []string
	}{
		{"rsocket", []string{"gvisor.dev/", "github.com/cilium/", "github.com/prometheus/", "github.com/spf13/", module + "/gateway"}},
		{"negotiate", []string{module + "/", "gvisor.dev/", "github.com/"}},
		{"packet", []string{module + "/", "gvisor.dev/", "github.com/", "golang.org/x/"}},
		{"cmd/smcgw", []string{"testing", "github.com/stretchr/", "go.uber.org/goleak", "pgregory.net/", module + "/lab", module + "/tests", module + "/rsocket/cm", module + "/rsocket/socket"}},
	} {
		t.Run(strings.ReplaceAll(c.pkg, "/", "-"), func(t *testing.T) {
			deps := goList(t, c.pkg)
			require.NotEmpty(t, deps)
			for _, dep := range deps {
				for _, banned := range c.banned {
					if !under(dep, module+"/"+c.pkg) && under(dep, strings.TrimSuffix(banned, "/")) {
						t.Errorf("%s links %s", c.pkg, dep)
					}
				}
			}
		})
	}
	require.Contains(t, goList(t, "lab/testnet"), "github.com/cilium/ebpf", "go list sees nothing")
}

// TestNothingOfTheLaboratory looks into the program that runs on hosts: no function
// of the laboratory is in it, and no variable that a test program or a fault is
// asked for by. The programs that do have them show that they would be seen.
func TestNothingOfTheLaboratory(t *testing.T) {
	marks := []string{module + "/lab/", module + "/tests/", "SMCGW_TESTNET_APP", "SMCGW_DEBUG_"}
	in := func(args ...string) (found []string) {
		program := build(t, args...)
		symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", program).Output()
		require.NoError(t, err)
		require.Contains(t, string(symbols), "main.main")
		text, err := os.ReadFile(program)
		require.NoError(t, err)
		for _, mark := range marks {
			if bytes.Contains(symbols, []byte(mark)) || bytes.Contains(text, []byte(mark)) {
				found = append(found, mark)
			}
		}
		return found
	}
	require.Empty(t, in("./cmd/smcgw"))
	require.Equal(t, []string{marks[0], "SMCGW_TESTNET_APP"}, in("./cmd/smcgw-lab"))
	require.Equal(t, []string{marks[0], "SMCGW_DEBUG_"}, in("-tags", "smcgw_faults", "./cmd/smcgw"))
}

// build builds a program as the Makefile does.
func build(t *testing.T, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-trimpath", "-ldflags", "-w", "-o", file}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

// goList lists a package's dependencies.
func goList(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+pkg)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.Fields(string(out))
}
