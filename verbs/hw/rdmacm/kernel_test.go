package rdmacm

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs"
)

// recordVariable names the file that TestKernelPath writes what the kernel says to.
const recordVariable = "SMCGW_RDMACM_RECORD"

// recorder writes down commands and answers.
type recorder struct {
	kernel

	out strings.Builder
}

func (r *recorder) Call(c Command, answer []byte) error {
	err := r.kernel.Call(c, answer)
	r.note(c, answer, err)
	return err
}

func (r *recorder) Next(ctx context.Context, answer []byte) error {
	err := r.kernel.Next(ctx, answer)
	r.note(GetEvent{}, answer, err)
	return err
}

func (r *recorder) note(c Command, answer []byte, err error) {
	if err != nil {
		fmt.Fprintf(&r.out, "%v %x error %v\n", c.Number(), Encode(c, 0), err)
		return
	}
	fmt.Fprintf(&r.out, "%v %x answer %s\n", c.Number(), Encode(c, 0), hex.EncodeToString(answer))
}

// hostAddrs are one address of the host of each version that the kernel has a path from.
func hostAddrs(t *testing.T) (all []netip.Addr) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	var have4, have6 bool
	for _, s := range addrs {
		p, err := netip.ParsePrefix(s.String())
		require.NoError(t, err)
		a := p.Addr()
		if a.IsLoopback() || a.IsLinkLocalUnicast() || a.Is4() && have4 || a.Is6() && have6 {
			continue
		}
		have4, have6 = have4 || a.Is4(), have6 || a.Is6()
		all = append(all, a)
	}
	require.NotEmpty(t, all)
	return all
}

// TestKernelPath asks for the way to an address. It needs an RDMA device on one of the host's addresses.
func TestKernelPath(t *testing.T) {
	f, err := Open()
	if err != nil {
		testnet.Lack(t, "kernel", err)
	}
	require.NoError(t, f.Close())
	noted := &recorder{}
	for _, addr := range hostAddrs(t) {
		p, err := Resolve(t.Context(), netip.Addr{}, addr)
		require.NoError(t, err)
		require.Equal(t, verbs.GIDOf(addr), p.DGID)
		require.NotZero(t, p.MTU.Bytes())
		t.Logf("%+v", p)
		f, err := Open()
		require.NoError(t, err)
		noted.kernel = f
		_, err = resolveBy(t.Context(), noted, addr, addr)
		require.NoError(t, errors.Join(err, f.Close()))
	}
	_, err = Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("127.0.0.1"))
	require.Error(t, err)
	t.Log("no device:", err)
	if name := os.Getenv(recordVariable); name != "" {
		require.NoError(t, os.WriteFile(name+"."+t.Name(), []byte(noted.out.String()), 0o600))
	}
}
