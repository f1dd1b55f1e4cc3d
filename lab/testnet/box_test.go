package testnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// arrives waits long enough for a frame on a working network.
const arrives = 10 * time.Second

// staysAway is how long to wait for a frame that must not come.
const staysAway = 60 * time.Millisecond

func TestBoxValidate(t *testing.T) {
	require.NoError(t, Box{}.Validate())
	err := Box{Loss: 1001, Dup: -1, Reorder: 2000, Delay: -1}.Validate()
	for _, want := range []string{"loss", "dup", "reorder", "delay"} {
		require.ErrorContains(t, err, want)
	}
	_, h1, _ := start(t, Config{Hosts: []string{"h1", "h2"}})
	require.Error(t, h1.SetBox(Box{Loss: -1}))
}

// segment kinds and what the box can do to our option on each.
var boxKinds = []struct {
	name  string
	flags byte
	role  byte
}{
	{"syn", flagSYN, 1},
	{"synack", flagSYN | flagACK, 2},
	{"ack", flagACK, 3},
}

func TestBoxStripAndDrop(t *testing.T) {
	n, h1, h2 := start(t, Config{Hosts: []string{"h1", "h2"}})
	in, out := sniff(t, h1), sniff(t, h2)
	port := uint16(2000)
	families := []struct {
		name     string
		src, dst func(uint16) netip.AddrPort
	}{{"ipv4", h1.AddrPort4, h2.AddrPort4}, {"ipv6", h1.AddrPort6, h2.AddrPort6}}
	for _, mode := range []struct {
		name     string
		box      Box
		strips   string
		swallows string
	}{
		{"none", Box{}, "", ""},
		{"strip syn", Box{StripSYN: true}, "syn", ""},
		{"strip synack", Box{StripSYNACK: true}, "synack", ""},
		{"strip rest", Box{StripRest: true}, "ack", ""},
		{"eat offers", Box{EatOffers: true}, "", "syn"},
		{"drop accepts", Box{DropAccepts: true}, "", "synack"},
		{"drop rest", Box{DropRest: true}, "", "ack"},
		{"blackhole", Box{Blackhole: true}, "", "syn synack ack"},
		{"other port", Box{Blackhole: true, Port: 9}, "", ""},
	} {
		require.NoError(t, n.SetBox(mode.box))
		for _, kind := range boxKinds {
			for _, f := range families {
				t.Run(mode.name+"/"+kind.name+"/"+f.name, func(t *testing.T) {
					port++
					sent := buildFrame(f.src(port), f.dst(9999), mac(h1), mac(h2), kind.flags, testOption(kind.role), nil)
					in.send(t, sent)
					if contains(mode.swallows, kind.name) {
						_, ok := out.next(t, staysAway, between(port, 9999))
						require.False(t, ok)
						return
					}
					v, ok := out.next(t, arrives, between(port, 9999))
					require.True(t, ok)
					require.True(t, v.goodChecksum())
					if contains(mode.strips, kind.name) {
						require.Equal(t, packet.OptionList(nops(12)), v.Options())
						return
					}
					require.Equal(t, testOption(kind.role), findOption(v.Options()))
				})
			}
		}
	}
	s := boxStats(t, n)
	require.EqualValues(t, 2, s.Eaten)
	require.EqualValues(t, 2, s.DroppedAccepts)
	require.EqualValues(t, 6, s.Stripped)
	require.GreaterOrEqual(t, s.Blackholed, uint64(6+2), "and what the kernels answer")
	require.EqualValues(t, 8*2-2, s.Offers, "blackhole and other port look no further")
	require.EqualValues(t, 8*2-2, s.Accepts)
	require.EqualValues(t, 8*2-2, s.Confirms)
}

func contains(list, word string) bool { return slices.Contains(strings.Fields(list), word) }

// The option may be anywhere; the checksum must stay right at every alignment,
// also when it is left to hardware.
func TestBoxStripAlignment(t *testing.T) {
	n, h1, h2 := start(t, Config{Hosts: []string{"h1", "h2"}})
	require.NoError(t, n.SetBox(Box{StripSYN: true}))
	in, out := sniff(t, h1), sniff(t, h2)
	timestamps := []byte{8, 10, 1, 2, 3, 4, 0, 0, 0, 0}
	port := uint16(3000)
	for lead := range 31 {
		options := append(nops(lead), testOption(1)...)
		if lead == 20 {
			options = append(append(append([]byte(nil), timestamps...), timestamps...), testOption(1)...)
		}
		for _, partial := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%v", lead, partial), func(t *testing.T) {
				port++
				frame := buildFrame(h1.AddrPort4(port), h2.AddrPort4(9999), mac(h1), mac(h2), flagSYN, options, []byte("odd"))
				if partial {
					leaveToHardware(frame)
				}
				in.send(t, frame)
				v, ok := out.next(t, arrives, between(port, 9999))
				require.True(t, ok)
				require.Nil(t, findOption(v.Options()))
				want := append(append([]byte(nil), options[:len(options)-packet.OptionLen]...), nops(packet.OptionLen+(-len(options)&3))...)
				require.Equal(t, packet.OptionList(want), v.Options())
				if partial {
					v.completeChecksum(t)
				}
				require.True(t, v.goodChecksum())
			})
		}
	}
	require.EqualValues(t, 62, boxStats(t, n).Stripped)
}

// leaveToHardware makes a frame one with CHECKSUM_PARTIAL: the field holds the
// pseudo header's sum, and the virtio header says where to put the whole.
func leaveToHardware(frame []byte) {
	v, _ := viewFrame(frame)
	frame[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(frame[6:], uint16(v.l4-vnetHeaderLen))
	binary.NativeEndian.PutUint16(frame[8:], 16)
	packet.TCP(frame[v.l4:]).SetChecksum(packet.PseudoSum(frame[v.ip:v.l4], packet.ProtoTCP, v.last-v.l4))
}

// completeChecksum does the hardware's part.
func (v frameView) completeChecksum(t *testing.T) {
	t.Helper()
	require.EqualValues(t, 1, v.frame[0]&1, "checksum is no longer partial")
	packet.TCP(v.frame[v.l4:]).SetChecksum(^packet.Sum(v.frame[v.l4:v.last], 0))
}

// Malformed options must neither be found nor harm.
func TestBoxIgnoresOthers(t *testing.T) {
	n, h1, h2 := start(t, Config{Hosts: []string{"h1", "h2"}})
	require.NoError(t, n.SetBox(Box{EatOffers: true}))
	in, out := sniff(t, h1), sniff(t, h2)
	for i, options := range [][]byte{
		nil,
		append([]byte{0}, testOption(1)...),                    // after the end of the list
		append([]byte{254, 0}, testOption(1)...),               // length 0
		append([]byte{254, 1}, testOption(1)...),               // length 1
		{254, 10, 'S', 'M', 'G', 'X', 0x11, 0, 0, 0},           // another protocol's
		{254, 8, 'S', 'M', 'G', 'W', 0x11, 0},                  // wrong length
		{253, 10, 'S', 'M', 'G', 'W', 0x11, 0, 0, 0},           // other kind
		append(append(nops(30), 254, 255), make([]byte, 8)...), // beyond the header
	} {
		port := uint16(4000 + i)
		in.send(t, buildFrame(h1.AddrPort6(port), h2.AddrPort6(9999), mac(h1), mac(h2), flagSYN, options, nil))
		_, ok := out.next(t, arrives, between(port, 9999))
		require.True(t, ok, "%d: % x", i, options)
	}
	require.Zero(t, boxStats(t, n).Eaten)
}

func TestMirrorFrames(t *testing.T) {
	_, h1, h2 := fakeHosts()
	testMirrorFrames(t, h1, h2, h1.AddrPort4(1), h2.AddrPort4(2))
	testMirrorFrames(t, h1, h2, h1.AddrPort6(1), h2.AddrPort6(2))
}

func testMirrorFrames(t *testing.T, h1, h2 *Host, from, to netip.AddrPort) {
	t.Helper()
	syn := func(options []byte) []byte {
		return buildFrame(from, to, mac(h1), mac(h2), flagSYN, options, nil)
	}
	synack := func(options []byte) []byte {
		return buildFrame(to, from, mac(h2), mac(h1), flagSYN|flagACK, options, nil)
	}
	var m mirror
	_, grown := m.pass(synack(nil))
	require.False(t, grown, "nothing known")
	m.pass(syn(testOption(1)))
	out, grown := m.pass(append(synack([]byte{2, 4, 5, 180}), 0, 0, 0)) // Ethernet padding
	require.True(t, grown)
	v, ok := viewFrame(out)
	require.True(t, ok)
	require.Equal(t, packet.OptionList(append([]byte{2, 4, 5, 180, 1, 1}, testOption(1)...)), v.Options())
	require.Len(t, out, v.last)
	require.True(t, v.goodChecksum())
	_, grown = m.pass(synack(testOption(2)))
	require.False(t, grown, "has one already")
	_, grown = m.pass(synack(nops(32)))
	require.False(t, grown, "no room")
	m.pass(syn(nil))
	_, grown = m.pass(synack(nil))
	require.False(t, grown, "the retransmission was bare")

	whole := synack(testOption(2))
	for i := range whole {
		m.pass(whole[:i:i])
	}
}

func fakeHosts() (n *Network, h1, h2 *Host) {
	h1 = &Host{Name: "h1", Addr4: addr4(1), Addr6: addr6(1), number: 1}
	h2 = &Host{Name: "h2", Addr4: addr4(2), Addr6: addr6(2), number: 2}
	return &Network{hosts: []*Host{h1, h2}}, h1, h2
}
