package negotiate

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/smcgw/smcgw/internal/golden"
)

// The numbers are on the wire, in the eBPF maps and in metrics: typed again here on purpose.
var reasonNumbers = map[uint8]string{
	1: "off", 2: "policy", 3: "never_list", 4: "gateway_stale", 5: "nat", 6: "forwarded", 7: "syn_options", 8: "address",
	9: "canary", 10: "app_leg_blocked", 20: "peer_no_option", 21: "option_mirrored", 22: "option_blackholed", 23: "accept_lost", 24: "client_gone",
	25: "peer_unresolved", 26: "option_rejected", 27: "peer_refused", 28: "offer_unanswered",
	30: "version", 31: "no_common_carrier", 32: "handshake_timeout", 33: "app_refused", 34: "app_unreachable",
	35: "no_memory", 36: "flow_limit", 37: "rate_limit", 38: "auth_failed", 39: "protocol_error",
	40: "carrier_unreachable", 41: "device_failed", 43: "mode", 44: "proposal_late", 45: "no_peer", 50: "not_worth_it", 60: "lost_bytes",
	61: "stalled", 62: "peer_dead", 63: "wire_reset", 64: "drained", 65: "internal_error",
	66: "app_reset",
}

func TestReasonNumbers(t *testing.T) {
	require.Len(t, Reasons(), len(reasonNumbers))
	for _, r := range Reasons() {
		require.Equal(t, reasonNumbers[uint8(r)], r.String())
	}
}

func TestReasonTexts(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, r := range Reasons() {
		require.Regexp(t, name, r.String())
		require.Regexp(t, `^[A-Z].*\.$`, r.Meaning(), r.String())
		require.NotEmpty(t, r.Fix(), r.String())
		require.True(t, r.known())
		got, ok := ParseReason(r.String())
		require.True(t, ok)
		require.Equal(t, r, got)
	}
}

func TestReasonUnknown(t *testing.T) {
	for _, r := range []Reason{11, 19, 200, 255} {
		require.False(t, r.known())
		require.Equal(t, fmt.Sprintf("reason_%d", uint8(r)), r.String())
		require.NotEmpty(t, r.Meaning())
		require.NotEmpty(t, r.Fix())
	}
	require.Equal(t, "none", ReasonNone.String())
	require.False(t, ReasonNone.known())
	for _, name := range []string{"", "none", "nonsense", "reason_10"} {
		_, ok := ParseReason(name)
		require.False(t, ok, name)
	}
}

func TestReasonJSON(t *testing.T) {
	b, err := json.Marshal(map[string]any{"reason": ReasonAppRefused, "carrier": CarrierSHM})
	require.NoError(t, err)
	require.JSONEq(t, `{"reason":"app_refused","carrier":"rdma-shm"}`, string(b))
}

func TestReasonOf(t *testing.T) {
	require.Equal(t, ReasonNone, ReasonOf(nil))
	require.Equal(t, ReasonVersion, ReasonOf(fmt.Errorf("x: %w", &CriticalTLVError{Type: 0x8099})))
	require.Equal(t, ReasonAuthFailed, ReasonOf(fmt.Errorf("x: %w", ErrAuth)))
	require.Equal(t, ReasonProtocolError, ReasonOf(ErrMalformed))
	require.Equal(t, ReasonProtocolError, ReasonOf(errors.New("other")))
}

// Every number has a name of its own, also those this version does not know.
func TestNames(t *testing.T) {
	for name, text := range map[string]func(uint8) string{
		"carrier": func(n uint8) string { return CarrierKind(n).String() },
		"message": func(n uint8) string { return MessageType(n).String() },
		"reason":  func(n uint8) string { return Reason(n).String() },
	} {
		seen := map[string]bool{}
		for n := range 256 {
			s := text(uint8(n))
			require.Regexp(t, `^[a-z][a-z0-9_-]*$`, s, name)
			require.False(t, seen[s], "%s %s twice", name, s)
			seen[s] = true
		}
	}
	require.Equal(t, "rdma-shm", CarrierSHM.String())
	require.Equal(t, "relay", CarrierRelay.String())
}

func FuzzParseReason(f *testing.F) {
	f.Add("app_refused")
	f.Add("none")
	f.Fuzz(func(t *testing.T, name string) {
		if r, ok := ParseReason(name); ok {
			require.Equal(t, name, r.String())
		}
	})
}

// TestReference: docs/reference/reasons.md is the table of reasons.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Reasons\n\n" +
		"Generated from `negotiate/reason_text.go` by `make docs`. `smcgw codes NAME` also says what to do.\n\n" +
		"A reason says why a connection is native, or how a carried one ended. It is one byte in DECLINE and ABORT. Numbers and names\n" +
		"never change; an unknown number is passed on as it is. 1–19 are decided on this host before the SYN leaves, 20–29 come from the\n" +
		"path or the SYN-ACK, 30–49 from the negotiation or a limit, 50–59 are learned, 60 and more are ends of carried connections.\n\n" +
		"| number | name | meaning |\n|---:|---|---|\n")
	for _, r := range Reasons() {
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", r, r, r.Meaning())
	}
	golden.Page(t, "docs/reference/reasons.md", b.String())
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
