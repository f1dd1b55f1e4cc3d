package netstack

import "github.com/smcgw/smcgw/packet"

// optionSpace is the size of our option behind two NOPs, which keep the header a multiple of four bytes.
const optionSpace = packet.OptionLen + 2

// appendOption appends two NOPs and the option.
func appendOption(b []byte, role packet.Role, nonce uint16) []byte {
	b = append(b, packet.KindNOP, packet.KindNOP)
	return packet.AppendOption(b, packet.Option{Version: packet.OptionVersion, Role: role, Nonce: nonce})
}
