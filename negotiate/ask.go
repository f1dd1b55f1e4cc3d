package negotiate

import "github.com/smcgw/smcgw/negotiate/internal/clc"

// Ask is the client's question whether the server has dialled the application. The answer is ACCEPT or DECLINE, which
// may already be in flight.
type Ask struct {
	// Version is the lowest version the client speaks; none has been chosen yet.
	Version uint8
}

// appendAsk appends an ASK without a MAC.
func appendAsk(b []byte, a Ask) []byte {
	start := len(b)
	return clc.EndMessage(clc.AppendHeader(b, TypeAsk, a.Version), start)
}

// parseAsk parses an ASK at the start of b and returns the number of bytes it consumed.
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
