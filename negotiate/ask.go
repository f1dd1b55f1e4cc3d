package negotiate

import "github.com/smcgw/smcgw/negotiate/internal/clc"

// Ask is the client's question whether the server has dialled the application: it is answered by ACCEPT or DECLINE, which
// may be on their way already.
type Ask struct {
	// Version is the lowest the client speaks; nothing is chosen yet.
	Version uint8
}

// appendAsk appends the message without a MAC.
func appendAsk(b []byte, a Ask) []byte {
	start := len(b)
	return clc.EndMessage(clc.AppendHeader(b, TypeAsk, a.Version), start)
}

// parseAsk reads an ASK at the start of b and returns the number of bytes it took.
func parseAsk(b []byte) (Ask, int, error) {
	h, tlvs, err := clc.Message(b, TypeAsk)
	if err != nil {
		return Ask{}, 0, err
	}
	if _, err := clc.WalkTLVs(tlvs, 0, func(uint16, []byte) error { return nil }); err != nil {
		return Ask{}, 0, err
	}
	return Ask{Version: h.Version}, h.Len, nil
}
