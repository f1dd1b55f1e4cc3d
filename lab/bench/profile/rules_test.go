package profile

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Samples of real runs, with the role of their process and what they are.
func TestRecordedSamples(t *testing.T) {
	b, err := os.ReadFile("testdata/samples.txt")
	require.NoError(t, err)
	seen := map[Item]bool{}
	for block := range strings.SplitSeq(strings.TrimSpace(string(b)), "\n\n") {
		head, text, _ := strings.Cut(block, "\n")
		role, item, ok := strings.Cut(strings.TrimPrefix(head, "# "), ": ")
		require.True(t, ok, head)
		list, err := collect(text + "\n\n")
		require.NoError(t, err)
		require.Len(t, list, 1, head)
		require.Equal(t, Item(item), Classify(list[0].Stack, Role(role)), text)
		seen[Item(item)] = true
	}
	for _, item := range Items {
		require.True(t, seen[item] || item == Other, "no sample of %q", item)
	}
}

func stack(symbols ...string) (list []Frame) {
	for _, s := range symbols {
		list = append(list, Frame{Symbol: s})
	}
	return list
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		want  Item
		of    Role
		stack []Frame
	}{
		// A helper belongs to its caller, whatever the compiler called it.
		{TCP, Client, stack("_raw_spin_lock", "tcp_ack.isra.0", "tcp_sendmsg", "do_syscall_64", "main")},
		{Network, Client, stack("memcpy", "ip_rcv", "net_rx_action", "tcp_sendmsg")},
		{Programs, Server, stack("memcpy", "aeProcessEvents")},
		{Programs, Server, nil},
		// The same copy, of a datagram and of a stream.
		{DatagramCopy, ClientGateway, stack("_copy_from_iter", "__ip_append_data", "udp_sendmsg")},
		{Copy, Client, stack("_copy_from_iter", "tcp_sendmsg_locked")},
		// Below a datagram everything is of it, except what is a stream's.
		{Datagrams, ClientGateway, stack("ip_output", "ip_send_skb", "udp_send_skb", "udp_sendmsg")},
		{TCP, ClientGateway, stack("tcp_v4_rcv", "net_rx_action", "udp_send_skb", "udp_sendmsg")},
		{Datagrams, ClientGateway, stack("kmem_cache_free", "skb_free", "udp_recvmsg")},
		{Buffers, ClientGateway, stack("kmem_cache_free", "tcp_ack")},
		// Looking for work is that, and not the system calls it is made of.
		{Spin, ServerGateway, stack("do_sched_yield", "do_syscall_64", module+"gateway/internal/loop.(*Shard).spin", module+"gateway/internal/loop.(*Shard).wait")},
		{Wakeups, ServerGateway, stack("do_sched_yield", "do_syscall_64", "elsewhere")},
		{Collector, ClientGateway, stack("runtime.memclrNoHeapPointers", "runtime.mallocgc", module+"verbs/soft.pages")},
		{RingCopy, ClientGateway, stack("runtime.memmove", module+"verbs/soft.(*qp).execute")},
		{Streams, ClientGateway, stack("runtime.memmove", "encode")},
		{Checksum, Client, stack("hash/crc32.update", module+"verbs/soft.(*transmitter).add")},
		// Other processes are not looked into.
		{Machine, Others, stack("tcp_ack", "tcp_sendmsg")},
		{Machine, Kernel, stack("damon_walk", "kthread", "ret_from_fork")},
		{TCP, Kernel, stack("tcp_ack", "net_rx_action", "run_ksoftirqd", "kthread")},
		{Idle, Kernel, stack("pv_native_safe_halt", "do_idle")},
		{TCP, Kernel, stack("tcp_ack", "net_rx_action", "irq_exit_rcu", "do_idle")},
		{Other, Kernel, stack("unheard_of")},
		{Other, Kernel, nil},
	} {
		require.Equal(t, c.want, Classify(c.stack, c.of), "%v", c.stack)
	}
}

func TestBeginnings(t *testing.T) {
	require.True(t, begins("tcp_ack.isra.0", []string{"udp_", "tcp_"}))
	require.True(t, begins("kthread", []string{"kthread$"}))
	require.False(t, begins("kthreadd", []string{"kthread$"}))
	require.False(t, begins("", []string{"tcp_"}))
}

// The functions and types of ours that rules name are there.
func TestOurNames(t *testing.T) {
	for _, name := range []string{spinning, negotiating[0], checksum[1], checksum[2], streaming[0], streaming[1], streaming[2], carrying[0]} {
		at := strings.LastIndexByte(name, '/')
		pkg, what, _ := strings.Cut(name[at+1:], ".")
		dir := filepath.Join("../../..", strings.TrimPrefix(name[:at+1], module), pkg)
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, name)
		what = strings.TrimSuffix(what, "$")
		if what == "" {
			continue
		}
		require.True(t, declared(t, files, what), "%s is not in %s", what, dir)
	}
}

// declared looks for a function, "(*type).method" or "(*type)".
func declared(t *testing.T, files []string, what string) bool {
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				if star, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
					if id, ok := star.X.(*ast.Ident); ok {
						name = "(*" + id.Name + ")." + name
					}
				}
			}
			if name == what || strings.HasPrefix(name, what+".") {
				return true
			}
		}
	}
	return false
}
