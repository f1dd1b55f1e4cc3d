package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// thorough tells whether the tests of datagrams run their whole matrices, as in `make soak` and `make faults`.
func thorough() bool { return os.Getenv("SMCGW_DATAGRAMS") == "all" }

// TestDatagramPrograms runs unmodified UDP programs between two hosts with gateways, and to a host without one.
func TestDatagramPrograms(t *testing.T) {
	t.Parallel()
	d := newDatagrams(t, false)
	require.NoError(t, d.server.Kill()) // the programs want its ports
	_ = d.server.Wait()
	procs := serveAll(t, d.h2)
	eachProgram(t, d.h1, d.h2, procs, func(t *testing.T, p udpProgram, server netip.AddrPort, run func() exchanged) {
		d.carries(t, run)
		c := d.g1.awaitConn("udp", func(c report.ConnInfo) bool { return c.Proto == "udp" && c.Remote == server && c.Carrier == d.via }, "--all")
		require.Positive(t, c.TxBytes, "%+v", c)
		c = d.g2.awaitConn("udp", func(c report.ConnInfo) bool { return c.Proto == "udp" && c.Local == server && c.Carrier == d.via }, "--all")
		require.Positive(t, c.RxBytes, "%+v", c)
	})
}

// TestDatagramSockets checks that sockets of every kind behave as natively, and that what is reported as carried is.
func TestDatagramSockets(t *testing.T) { datagramSockets(t, newDatagrams(t, false)) }

// TestDatagramSocketsSoft is TestDatagramSockets over soft.
func TestDatagramSocketsSoft(t *testing.T) { datagramSockets(t, newDatagrams(t, false)) }

// TestDatagramProgramsToPlainHost checks that nothing changes with a host that has no gateway: all that the programs
// are tested for holds natively, and the host receives only the programs' own datagrams and, since a rule names it,
// at most one question at each of its addresses.
func TestDatagramProgramsToPlainHost(t *testing.T) {
	t.Parallel()
	d := newDatagrams(t, false)
	require.NoError(t, d.plain.Kill())
	_ = d.plain.Wait()
	d.leaves(t, func() { allPrograms(t, d.h1, d.h3) })
	// The other way: a client on a host without a gateway.
	d.restartServer(t)
	d.leaves(t, func() {
		d.ping(t, d.h3, d.h2.AddrPort4(echoUDP).String(), "-count", "20")
		d.ping(t, d.h3, d.h2.AddrPort6(echoUDP).String(), "-count", "20", "-connected")
	})
}

// TestDatagramsShown checks what an operator sees of datagrams.
func TestDatagramsShown(t *testing.T) {
	t.Parallel()
	d := newDatagrams(t, false)
	var locals []string
	for _, h := range []*testnet.Host{d.h2, d.h3} {
		server := map[*testnet.Host]*testnet.Proc{d.h2: d.server, d.h3: d.plain}[h]
		known := len(server.Events())
		p, err := d.h1.StartApp("ping-udp", "-to", h.AddrPort4(echoUDP).String(), "-connected", "-for", "100s", "-input", "-gap", "5ms", "-patient")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(server.Events()) > known }, 30*time.Second, 10*time.Millisecond)
		locals = append(locals, server.Events()[known].Remote)
		defer func() {
			require.NoError(t, p.CloseInput())
			require.Zero(t, result(t, p).Failed)
		}()
	}
	carried := d.g1.awaitConn("udp", func(c report.ConnInfo) bool { return c.Proto == "udp" && c.Local.String() == locals[0] }, "--all")
	require.Equal(t, d.via, carried.Carrier)
	require.Equal(t, d.h2.AddrPort4(echoUDP), carried.Remote)
	require.Empty(t, carried.Reason)
	native := d.g1.awaitConn("native udp", func(c report.ConnInfo) bool { return c.Proto == "udp" && c.Local.String() == locals[1] }, "--all")
	require.Equal(t, report.CarrierNone, native.Carrier)
	require.Equal(t, d.h3.AddrPort4(echoUDP), native.Remote)
	require.Equal(t, "peer_unresolved", native.Reason)
	out := d.g1.says("conns", "-o", "wide")
	require.Regexp(t, `(?m)^\d+ +udp +client +`+locals[0]+` +10\.77\.0\.2:7100 +carrying +steered +`+string(d.via)+` .* exe +\d+ `, out)
	require.NotContains(t, out, locals[1])

	var before, after report.Stats
	d.g1.cliJSON(&before, "stats")
	time.Sleep(300 * time.Millisecond)
	d.g1.cliJSON(&after, "stats")
	require.Greater(t, after.Datagrams.Sent[d.via], before.Datagrams.Sent[d.via])
	require.Greater(t, after.Protocols[report.ProtoUDP].Bytes[d.via].Tx, before.Protocols[report.ProtoUDP].Bytes[d.via].Tx)
	require.Positive(t, after.Protocols[report.ProtoUDP].Flows[d.via].Now)
	require.Positive(t, after.Protocols[report.ProtoUDP].Native["peer_unresolved"])
	out = d.g1.says("stats")
	require.Regexp(t, `(?m)^udp +`+string(d.via)+` `, out)
	m := d.g1.metrics(t)
	require.Positive(t, m[`smcgw_dgrams_total{direction="tx",result="sent"}`], "%v", m)
	require.Positive(t, m[`smcgw_dgrams_total{direction="rx",result="delivered"}`], "%v", m)
	t.Log(out)
}

// restartServer replaces the servers of h2.
func (d *datagrams) restartServer(t *testing.T) {
	t.Helper()
	require.NoError(t, d.server.Kill())
	_ = d.server.Wait()
	d.server = d.serveNumbered(d.h2)
}

// TestDatagramsPlainHostUntouched counts what reaches a host without a gateway.
func TestDatagramsPlainHostUntouched(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "tcpdump")
	for _, c := range []struct {
		name, peers string
		questions   int // to each address
	}{{"named", named, 1}, {"not named", "", 0}} {
		t.Run(c.name, func(t *testing.T) {
			d := newDatagramWorld(t)
			d.plain = d.serveNumbered(d.h3)
			d.g1 = d.up(d.h1, settings{Policy: udpRule(c.peers)})
			lines := d.captured(t, d.h3, func() {
				families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
					for range 3 {
						d.ping(t, d.h1, addr(d.h3, echoUDP), "-count", "50", "-gap", "1ms")
					}
					d.ping(t, d.h1, addr(d.h3, plainUDP), "-count", "20")
				})
				time.Sleep(500 * time.Millisecond)
			})
			questions := map[string]int{}
			own := 0
			for _, l := range lines {
				switch {
				case strings.Contains(l, fmt.Sprintf(".%d", echoUDP)), strings.Contains(l, fmt.Sprintf(".%d", plainUDP)):
					own++
				case strings.Contains(l, " > 10.77.0.3.4790:"):
					questions["ipv4"]++
				case strings.Contains(l, " > fd77::3.4790:"):
					questions["ipv6"]++
				default:
					require.Fail(t, "a datagram of nobody", l)
				}
			}
			require.Equal(t, 2*2*170, own, "there and back, twice 170: %s", strings.Join(lines, ""))
			for family, n := range questions {
				require.LessOrEqual(t, n, c.questions, family)
			}
			require.LessOrEqual(t, len(questions), 2*c.questions)
			require.Empty(t, d.g1.udpStats().Sent[d.via])
		})
	}
}

// discardPort is a UDP port without a listener, in no policy.
const discardPort = 9

// captured returns a line for each UDP packet that a host sends or receives while run runs.
func (d *datagrams) captured(t *testing.T, h *testnet.Host, run func()) (lines []string) {
	t.Helper()
	// The kernel's capture ring reserves -s bytes for each packet.
	p, err := h.Start("tcpdump", "-i", "eth0", "-nn", "-l", "--immediate-mode", "-q", "-s", "128", "udp")
	require.NoError(t, err)
	require.NoError(t, p.WaitOutput(patience(t), "listening on"))
	run()
	// When tcpdump has shown this one, it has shown all before it.
	require.NoError(t, d.h1.Do(func() error {
		c, err := net.Dial("udp", h.AddrPort4(discardPort).String())
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("the last one"))
		return errors.Join(err, c.Close())
	}))
	last := fmt.Sprintf(" > %v.%d:", h.Addr4, discardPort)
	require.NoError(t, p.WaitOutput(patience(t), last))
	require.NoError(t, p.Signal(syscall.SIGINT))
	_ = p.Wait()
	require.Contains(t, p.Output(), "0 packets dropped by kernel")
	for line := range strings.Lines(p.Output()) {
		if strings.Contains(line, " > ") && !strings.Contains(line, last) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestDatagramsLearnedFromTCP checks that, where no rule names the other host by its address, datagrams are carried
// once a connection has shown its gateway, and that nothing is asked before.
func TestDatagramsLearnedFromTCP(t *testing.T) {
	t.Parallel()
	d := newDatagramWorld(t)
	d.server = d.serveNumbered(d.h2)
	d.serve(d.h2)
	s := settings{Policy: udpRule("")}
	d.g1, d.g2 = d.up(d.h1, s), d.up(d.h2, s)
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		lines := d.captured(t, d.h2, func() {
			d.leaves(t, func() {
				for range 5 {
					d.ping(t, d.h1, addr(d.h2, echoUDP), "-count", "20", "-gap", "5ms")
				}
			})
		})
		for _, l := range lines {
			require.NotContains(t, l, hostOf(addr(d.h2, 1)).String()+".4790:", "a question")
		}
		d.carried(t, d.h1, addr(d.h2, echoPort))
		d.prove(t, netip.MustParseAddrPort(addr(d.h2, echoUDP)))
		d.carries(t, func() exchanged {
			d.ping(t, d.h1, addr(d.h2, echoUDP), "-count", "100")
			return exchanged{100, 100}
		})
	})
}

// TestDatagramsAllPortsSoft checks that a rule for the datagrams of every port leaves out those of the gateways
// themselves, whichever port peers receive them on.
func TestDatagramsAllPortsSoft(t *testing.T) {
	t.Parallel()
	d := newDatagramWorld(t)
	d.server = d.serveNumbered(d.h2)
	s := settings{Policy: "  - { name: datagrams, match: { proto: udp, peers: [" + named + "] }, action: accelerate }\n"}
	d.g1 = d.up(d.h1, s)
	s.Extra = "soft: { udp_port: 4999 }\n"
	d.g2 = d.up(d.h2, s)
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		d.prove(t, netip.MustParseAddrPort(addr(d.h2, plainUDP)))
		d.carries(t, func() exchanged {
			d.ping(t, d.h1, addr(d.h2, plainUDP), "-count", "100")
			return exchanged{100, 100}
		})
	})
}

// TestDatagramsByUser checks rules that choose by the user that made the socket.
func TestDatagramsByUser(t *testing.T) {
	t.Parallel()
	d := newDatagramWorld(t)
	d.server = d.serveNumbered(d.h2)
	d.g1 = d.up(d.h1, settings{Policy: fmt.Sprintf(
		"  - { name: datagrams, match: { proto: udp, ports: [%d], users: [%d], peers: [%s] }, action: accelerate }\n", echoUDP, testUID, named)})
	d.g2 = d.up(d.h2, datagramSettings())
	cmd := d.h1.AppCommand(t.Context(), "ping-udp", "-to", d.h2.AddrPort6(echoUDP).String(), "-for", "100s", "-input", "-gap", "2ms", "-patient")
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: testUID, Gid: testUID}
	p, err := d.h1.StartCmd(cmd)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.g1.udpStats().Received[d.via] > 20 }, 30*time.Second, 50*time.Millisecond, "of that user: %s", d.dumpUDP())
	require.NoError(t, p.CloseInput())
	require.Zero(t, result(t, p).Failed)
	d.leaves(t, func() { d.ping(t, d.h1, d.h2.AddrPort6(echoUDP).String(), "-count", "50", "-connected") })
}

// TestDatagramsTranslated checks that programs reach the servers that they reach natively where addresses are
// translated, on the client's host, on the server's or between them.
func TestDatagramsTranslated(t *testing.T) { datagramsTranslated(t, newDatagrams(t, false)) }
