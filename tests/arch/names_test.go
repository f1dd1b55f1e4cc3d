package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

// The vocabulary of the project: what users see and what goes over the wire.
// A name or number that changes here breaks peers, dashboards and scripts.

// reasons by number.
var reasons = map[uint8]string{
	1: "off", 2: "policy", 3: "never_list", 4: "gateway_stale", 5: "nat", 6: "forwarded", 7: "syn_options",
	8: "address", 9: "canary", 10: "app_leg_blocked",
	20: "peer_no_option", 21: "option_mirrored", 22: "option_blackholed", 23: "accept_lost", 24: "client_gone",
	25: "peer_unresolved", 26: "option_rejected", 27: "peer_refused", 28: "offer_unanswered",
	30: "version", 31: "no_common_carrier", 32: "handshake_timeout", 33: "app_refused", 34: "app_unreachable",
	35: "no_memory", 36: "flow_limit", 37: "rate_limit", 38: "auth_failed", 39: "protocol_error",
	40: "carrier_unreachable", 41: "device_failed", 43: "mode", 44: "proposal_late",
	50: "not_worth_it",
	60: "lost_bytes", 61: "stalled", 62: "peer_dead", 63: "wire_reset", 64: "drained",
	65: "internal_error", 66: "app_reset",
}

// words of the gateway's types; the type of the states has other constants,
// its names are in a table.
var words = map[string][]string{
	"Mode":       {"off", "observe", "enforce"},
	"Action":     {"pass", "accelerate", "auto"},
	"Carrier":    {"rdma-shm", "rdma-soft", "rdma-hw", "rdma-ib", "relay"},
	"DeviceKind": {"shm", "soft", "hw", "ib"},
	"Side":       {"client", "server"},
	"phaseNames": {
		"offered", "accepted", "negotiating", "completing", "carrying", "closing", "closed", "native", "released",
		"aborted", "dead",
	},
}

func TestReasons(t *testing.T) {
	have := map[uint8]string{}
	for _, r := range negotiate.Reasons() {
		have[uint8(r)] = r.String()
		require.NotEmpty(t, r.Meaning(), r)
		require.NotEmpty(t, r.Fix(), r)
	}
	require.Equal(t, reasons, have)
}

// TestReasonsDocumented: every reason is explained where users and
// implementers look.
func TestReasonsDocumented(t *testing.T) {
	tr := load(t, "../..")
	docs := tr.documentation()
	require.NotEmpty(t, docs)
	for number, name := range reasons {
		if !mentions(docs, name) {
			t.Errorf("reason %d %s is not in the documentation", number, name)
		}
	}
}

// vocabulary compares the words with the constants of the gateway's types,
// once there is a gateway.
func vocabulary(tr *tree) (problems []string) {
	if !slices.Contains(tr.packages(), "gateway") {
		return nil
	}
	found := map[string][]string{}
	for _, f := range tr.files {
		if under(f.dir, "gateway") && !f.test {
			collectWords(f.syntax, found)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(words)) {
		want, got := slices.Sorted(slices.Values(words[kind])), slices.Sorted(slices.Values(found[kind]))
		if !slices.Equal(want, got) {
			problems = append(problems, fmt.Sprintf("gateway: the names of %s are %q, not %q", kind, got, want))
		}
	}
	return problems
}

// collectWords gathers the values of typed string constants by their type, and
// of the table of states.
func collectWords(f *ast.File, into map[string][]string) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok {
			for _, v := range spec.Values {
				if word, ok := literal(v); ok && word != "" {
					into[kind.Name] = append(into[kind.Name], word)
				}
			}
		}
		if len(spec.Names) == 1 && len(spec.Values) == 1 && spec.Names[0].Name == "phaseNames" {
			if table, ok := spec.Values[0].(*ast.CompositeLit); ok {
				into["phaseNames"] = append(into["phaseNames"], elements(table)...)
			}
		}
		return true
	})
}

func elements(table *ast.CompositeLit) (list []string) {
	for _, e := range table.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
		}
		if word, ok := literal(e); ok {
			list = append(list, word)
		}
	}
	return list
}

// usesName looks for an identifier.
func usesName(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// TestNumbersAreStable guards the table itself against a typing error: the
// groups of reasons are the tens.
func TestNumbersAreStable(t *testing.T) {
	require.Len(t, reasons, 41)
	seen := map[string]bool{}
	for n, name := range reasons {
		require.False(t, seen[name], name)
		seen[name] = true
		require.Contains(t, []string{"0", "1", "2", "3", "4", "5", "6"}, strconv.Itoa(int(n)/10))
	}
}
