package inprocess

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// numbers are those of layout.h: expressions of C, and what they are in Go.
var numbers = map[string]uint64{
	"SMCI_MAGIC": Magic, "SMCI_VERSION": Version, "SMCI_TRANSITIONS": Transitions, "SMCI_RING_AT": RingAt,
	"SMCI_ORDER_MIN": OrderMin, "SMCI_ORDER_MAX": OrderMax, "SMCI_SLACK": Slack, "SMCI_SPILL": Spill, "SMCI_SLOTS": Slots, "SMCI_ENTRY": EntrySize, "SMCI_ARM_SELF": ArmSelf, "SMCI_ARM_READ": ArmRead,
	"SMCI_ATTACHED": Attached, "SMCI_RECALL": Recall, "SMCI_GONE": Gone, "SMCI_FROZEN": Frozen, "SMCI_RESET": Reset, "SMCI_SHUT": Shut, "SMCI_ASKS": Asks, "SMCI_LEFT": Left, "SMCI_WHOLE": Whole,
	"SMCI_NONCES_AT": EndNonces, "SMCI_NONCE_SIZE": NonceSize,
	"sizeof(struct smci_desk)": DeskSize, "sizeof(struct smci_report)": ReportSize, "sizeof(struct smci_record)": RecordSize,
	"sizeof(struct smci_transition)": TransitionSize, "sizeof(struct smci_slot)": SlotSize,

	"offsetof(struct smci_end, magic)": EndMagic, "offsetof(struct smci_end, version)": EndVersion, "offsetof(struct smci_end, id)": EndID,
	"offsetof(struct smci_end, side)": EndSide, "offsetof(struct smci_end, order_max)": EndOrderMax, "offsetof(struct smci_end, head)": EndHead,
	"offsetof(struct smci_end, base)": EndBase, "offsetof(struct smci_end, ksent)": EndKsent, "offsetof(struct smci_end, order)": EndOrder,
	"offsetof(struct smci_end, nx)": EndNx, "offsetof(struct smci_end, want)": EndWant, "offsetof(struct smci_end, tail)": EndTail,
	"offsetof(struct smci_end, cx)": EndCx, "offsetof(struct smci_end, arm)": EndArm, "offsetof(struct smci_end, room)": EndRoom,
	"offsetof(struct smci_end, flags)": EndFlags, "offsetof(struct smci_end, got)": EndGot, "offsetof(struct smci_end, x)": EndTransitions,
	"offsetof(struct smci_desk, magic)": DeskMagic, "offsetof(struct smci_desk, version)": DeskVersion, "offsetof(struct smci_desk, slot)": DeskSlot,
	"offsetof(struct smci_news, magic)": NewsMagic, "offsetof(struct smci_news, version)": NewsVersion, "offsetof(struct smci_news, grants)": NewsGrants,
	"offsetof(struct smci_news, off)": NewsOff, "offsetof(struct smci_news, calls)": NewsCalls, "offsetof(struct smci_news, spin)": NewsSpin,
	"offsetof(struct smci_news, bytes)": NewsBytes, "offsetof(struct smci_news, policy)": NewsPolicy,
	"offsetof(struct smci_news, questions)": NewsQuestions, "offsetof(struct smci_news, kernel)": NewsKernel, "sizeof(struct smci_news)": NewsSize,
	"SMCI_OFF_ALL": OffAll, "SMCI_OFF_SOME": OffSome, "SMCI_ENTRIES": EntriesMax,

	"offsetof(struct smci_report, state)": ReportState, "offsetof(struct smci_report, why)": ReportWhy, "offsetof(struct smci_report, id)": ReportID,
	"offsetof(struct smci_report, rx_ring)": ReportRxRing, "offsetof(struct smci_report, tx_ring)": ReportTxRing,
	"offsetof(struct smci_report, rx_kernel)": ReportRxKernel, "offsetof(struct smci_report, tx_kernel)": ReportTxKernel,
	"offsetof(struct smci_report, tokens_rx)": ReportTokensRx, "offsetof(struct smci_report, tokens_tx)": ReportTokensTx,
	"offsetof(struct smci_report, spills)": ReportSpills, "offsetof(struct smci_report, returns)": ReportReturns,
	"offsetof(struct smci_report, cookie)": ReportCookie, "offsetof(struct smci_report, family)": ReportFamily,
	"offsetof(struct smci_report, local_port)": ReportLocalAt, "offsetof(struct smci_report, remote_port)": ReportRemoteAt, "offsetof(struct smci_report, side)": ReportSide,
	"offsetof(struct smci_report, local)": ReportLocal, "offsetof(struct smci_report, remote)": ReportRemote,

	"offsetof(struct smci_record, what)": 0, "offsetof(struct smci_record, tag)": 4, "offsetof(struct smci_record, side)": 8,
	"offsetof(struct smci_record, why)": 12, "offsetof(struct smci_record, id)": 16, "offsetof(struct smci_record, a)": 24,
	"offsetof(struct smci_record, b)": 32,

	"SMCI_FREE": uint64(StateFree), "SMCI_NATIVE": uint64(StateNative), "SMCI_ASKED": uint64(StateAsked), "SMCI_MAPPED": uint64(StateMapped),
	"SMCI_PROMOTED": uint64(StatePromoted), "SMCI_NEVER": uint64(StateNever),
	"SMCI_HELLO": uint64(Hello), "SMCI_WELCOME": uint64(Welcome), "SMCI_ASK": uint64(Ask), "SMCI_GRANT": uint64(Grant),
	"SMCI_DENY": uint64(Deny), "SMCI_CLOSED": uint64(Closed), "SMCI_COUNT": uint64(Count), "SMCI_SOCKET": uint64(Socket),
}

// TestLayout compares with what the C compiler makes of layout.h, of which nothing is missing here.
func TestLayout(t *testing.T) {
	testnet.Require(t, "gcc")
	want := maps.Clone(numbers)
	for _, w := range append(Whys(), WhyNone) {
		want["SMCI_WHY_"+strings.ToUpper(w.String())] = uint64(w)
	}
	var c strings.Builder
	c.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"layout.h\"\nint main(void) {\n")
	for name := range want {
		fmt.Fprintf(&c, "printf(\"%%llu %s\\n\", (unsigned long long)(%s));\n", name, name)
	}
	c.WriteString("}\n")
	dir := t.TempDir()
	src, out := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	require.NoError(t, os.WriteFile(src, []byte(c.String()), 0o600))
	text, err := exec.Command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", "lib", "-o", out, src).CombinedOutput()
	require.NoError(t, err, string(text))
	text, err = exec.Command(out).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var n uint64
		_, err := fmt.Sscan(line, &n)
		require.NoError(t, err)
		name := strings.TrimSpace(line[strings.Index(line, " "):])
		require.Equal(t, want[name], n, name)
		delete(want, name)
	}
	require.Empty(t, want)
	header, err := os.ReadFile("lib/layout.h")
	require.NoError(t, err)
	for _, word := range strings.FieldsFunc(string(header), func(r rune) bool {
		return r != '_' && (r < 'A' || r > 'Z')
	}) {
		if _, compared := numbers[word]; strings.HasPrefix(word, "SMCI_") && !compared && !strings.HasPrefix(word, "SMCI_WHY_") {
			t.Errorf("%s is not compared", word)
		}
	}
	require.Equal(t, WhyCount, strings.Count(string(header), "\tSMCI_WHY_"))
}
