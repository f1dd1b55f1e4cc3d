package scan

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

func code(t testing.TB, text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

func TestDecodeX86(t *testing.T) {
	for _, c := range []struct {
		bytes string
		size  int
	}{
		{"0f05", 2},
		{"b8 3e010000", 5},
		{"66b8 3e01", 4},
		{"48b8 0102030405060708", 10},
		{"48c7c0 01000000", 7},
		{"488b04250f050000", 8},                 // mov 0x50f,%rax
		{"488d0d0f050000", 7},                   // lea 0x50f(%rip),%rcx
		{"66900f05", 2},                         // xchg %ax,%ax
		{"f30f1efa", 4},                         // endbr64
		{"c5f877", 3},                           // vzeroupper
		{"c4e3fd00c04e", 6},                     // vpermq $0x4e,%ymm0,%ymm0
		{"62f1fd486f4001", 7},                   // vmovdqa64 0x40(%rax),%zmm0
		{"f7c001000000", 6},                     // test $1,%eax
		{"f7d0", 2},                             // not %eax
		{"c8 1000 01", 4},                       // enter
		{"48a3 0102030405060708", 10},           // movabs %rax
		{"66 0f1f840000000000", 9},              // nopw
		{"06", 0},                               // push %es
		{"", 0},                                 //
		{"2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e90", 0}, // 16 bytes
		{"8fc0", 2},                             // pop %rax
		{"8fe878c0c105", 6},                     // vprotb $5,%xmm1,%xmm0, of XOP
		{"0f2400", 0},                           // mov from a test register
	} {
		in := decodeX86(code(t, c.bytes))
		require.Equal(t, c.size, in.size, c.bytes)
	}
}

func TestDecodeX86Truncated(t *testing.T) {
	for _, text := range []string{"48b8 0102030405060708", "62f1fd486f4001", "c4e3fd00c04e", "66 0f1f840000000000", "c8 1000 01", "0f05", "f7c001000000"} {
		b := code(t, text)
		require.Equal(t, len(b), decodeX86(b).size, text)
		for n := range b {
			require.Zero(t, decodeX86(b[:n]).size, "%s: %d bytes", text, n)
		}
	}
}

// TestDecodeX86LikeObjdump compares every instruction of libraries and programs with what
// objdump makes of it.
func TestDecodeX86LikeObjdump(t *testing.T) {
	testnet.Require(t, "objdump")
	files := 0
	for _, file := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/bin/redis-server", "/usr/bin/curl"} {
		c := exec.Command("objdump", "-dw", "--insn-width=15", "--section=.text", file)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		lines := bufio.NewScanner(out)
		compared, differ := 0, 0
		for lines.Scan() {
			fields := strings.Split(lines.Text(), "\t")
			if len(fields) < 3 || strings.Contains(fields[2], "(bad)") || strings.Contains(fields[2], ".byte") {
				continue
			}
			words := strings.Fields(fields[2])
			last := words[len(words)-1]
			if strings.HasPrefix(last, "rex") || len(words) == 1 && (strings.HasPrefix(last, "rep") || last == "lock" || strings.HasSuffix(last, "s") && len(last) == 2 || strings.HasPrefix(last, "data16") || strings.HasPrefix(last, "addr32")) {
				continue // prefixes that belong to nothing
			}
			b := code(t, strings.TrimSpace(fields[1]))
			compared++
			if in := decodeX86(append(b, 0x90, 0x90, 0x90)); in.size != len(b) {
				if differ++; differ <= 20 {
					t.Logf("%s: %s: %d", file, lines.Text(), in.size)
				}
			}
		}
		require.NoError(t, lines.Err())
		if c.Wait() != nil {
			continue // no such file here, or of another processor
		}
		files++
		t.Logf("%s: %d instructions, %d differ", file, compared, differ)
		require.Greater(t, compared, 1000)
		// Tables among the code are no instructions, and the two stumble differently.
		require.Less(t, differ, compared/5000+1, file)
	}
	if files == 0 {
		t.Skip("no program of x86-64")
	}
}

func TestSweepX86(t *testing.T) {
	for _, c := range []struct {
		name, bytes string
		entries     []entry
	}{
		{"a constant", "b83e010000 0f05 c3", []entry{{5, 318, true}}},
		{"one of 64 bits", "48c7c03e010000 4c89e6 0f05", []entry{{10, 318, true}}},
		{"zero", "31c0 0f05", []entry{{2, 0, true}}},
		{"pushed", "6a3c 58 0f05", []entry{{3, 60, true}}},
		{"another register's zero", "4531c0 0f05", []entry{{3, 0, false}}},
		{"a parameter", "89f8 0f05", []entry{{2, 0, false}}},
		{"overwritten", "b83e010000 89f8 0f05", []entry{{7, 0, false}}},
		{"overwritten in part", "b83e010000 b000 0f05", []entry{{7, 0, false}}},
		{"ah is a part of it", "b83e010000 b401 0f05", []entry{{7, 0, false}}},
		{"after a call", "b83e010000 e800000000 0f05", []entry{{10, 0, false}}},
		{"after another", "b83e010000 0f05 0f05", []entry{{5, 318, true}, {7, 0, false}}},
		{"a jump past the constant", "eb05 b83e010000 0f05", []entry{{7, 0, false}}},
		{"a jump to the constant", "eb00 b83e010000 0f05", []entry{{7, 318, true}}},
		{"a jump elsewhere", "7408 b83e010000 0f05 90 c3", []entry{{7, 318, true}}},
		{"a switch", "ffe2 b83e010000 0f05", []entry{{7, 0, false}}},
		{"within an operand", "488d0d0f050000 c3", nil},
		{"32 bits", "b801000000 cd80", []entry{{5, 0, false}}},
		{"sysenter", "b83e010000 0f34", []entry{{5, 0, false}}},
		{"another interrupt", "cd03", nil},
	} {
		got, ok := sweepX86(code(t, c.bytes))
		require.True(t, ok, c.name)
		for i := range got {
			if !got[i].known {
				got[i].number = 0
			}
		}
		require.Equal(t, c.entries, got, c.name)
	}
	_, ok := sweepX86(code(t, "9006"))
	require.False(t, ok)
}

// TestSearchX86: the search finds what a plain loop finds, also across chunks.
func TestSearchX86(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 4096)
	for i := range b {
		b[i] = []byte{0x0f, 0x05, 0x34, 0xcd, 0x80, 0x90}[r.IntN(6)]
	}
	var want, got []int
	for i := range b[1:] {
		if p := b[i : i+2]; bytes.Equal(p, []byte{0x0f, 0x05}) || bytes.Equal(p, []byte{0x0f, 0x34}) || bytes.Equal(p, []byte{0xcd, 0x80}) {
			want = append(want, i)
		}
	}
	eachX86(b, func(i int) bool { got = append(got, i); return true })
	require.Equal(t, want, got)
}

func FuzzX86(f *testing.F) {
	f.Add([]byte("\xb8\x3e\x01\x00\x00\x0f\x05\xc3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := decodeX86(b)
		require.LessOrEqual(t, in.size, min(len(b), longest))
		require.GreaterOrEqual(t, in.size, 0)
		if in.size > 0 { // what follows changes nothing, and less is not enough
			require.Equal(t, in, decodeX86(b[:in.size]))
			require.Zero(t, decodeX86(b[:in.size-1]).size)
		}
		entries, _ := sweepX86(b)
		for _, e := range entries {
			require.Less(t, e.at+1, len(b))
		}
	})
}
