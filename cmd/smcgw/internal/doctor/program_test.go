package doctor

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/scan"
	"github.com/smcgw/smcgw/internal/golden"
)

func TestProgram(t *testing.T) {
	number := int64(0)
	for name, r := range map[string]scan.Result{
		"promotable": {Program: "/usr/bin/server", Arch: scan.X86_64, Libc: scan.Glibc, Reasons: []scan.Reason{}, Scanned: 15},
		"raw": {
			Program: "/usr/bin/python3", Arch: scan.X86_64, Libc: scan.Musl, Scanned: 3, Missing: []string{"libx.so.1"},
			Reasons: []scan.Reason{scan.RawCalls, scan.Missing},
			Objects: []scan.Object{{Path: "/usr/lib/liby.so", Entries: 7, Counted: 6, Reasons: []scan.Reason{scan.RawCalls}, Sites: []scan.Site{
				{Offset: 0x1234, Address: 0x401234, Symbol: "y_read", Number: &number, Call: "read"}, {Offset: 0x2000}, {Offset: 0x2001}, {Offset: 0x2002}, {Offset: 0x2003},
			}}},
		},
		"static": {Program: "/bin/busybox", Arch: scan.X86_64, Reasons: []scan.Reason{scan.Static, scan.GoRuntime}, Scanned: 1},
	} {
		path := r.Program
		if name == "raw" {
			path = "/usr/bin/tool"
		}
		p := ExamineProgram(path, &r, "/usr/lib/smcgw/libsmcgw.so")
		require.Equal(t, len(r.Reasons) == 0, p.Answer == Promotable)
		require.Equal(t, name == "static", p.Library == "")
		var text, doc bytes.Buffer
		require.NoError(t, p.Text(&text))
		golden.File(t, "program-"+name+".txt", text.String())
		enc := json.NewEncoder(&doc)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		require.NoError(t, enc.Encode(p))
		golden.File(t, "program-"+name+".json", doc.String())
	}
	p := ExamineProgram("", &scan.Result{Libc: scan.Glibc}, "")
	require.Contains(t, p.Hints[0], "not installed")
}
