package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// The golden vectors, built by hand. docs/PROTOCOL.md prints the same text (TestProtocolDocument), so that the normative
// text, the tests and the code cannot drift apart. A line is bytes in hex, then a semicolon and what they are.
var vectors = map[string]string{
	"proposal": `
53 4d 47 57                                      ; eyecatcher "SMGW"
01                                               ; PROPOSAL
01                                               ; version: the lowest the client speaks
00 dc                                            ; length 220
80 01 00 02  be ef                               ; nonce, always the first TLV
80 02 00 02  01 01                               ; versions 1 to 1
80 06 00 04  00 00 00 cc                         ; budget 204 ms
80 03 00 10                                      ; gateway id
a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 aa ab ac ad ae af
00 04 00 10                                      ; host id
b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 ba bb bc bd be bf
00 05 00 02  12 b6                               ; datagram port 4790
80 07 00 44                                      ; carrier
01 00                                            ; kind 1 (shm), flags
01 02 01 80 00 00 00 00                          ; rsocket conn data: version 1, iomap, 384 credits
00 00 7f 00 00 a0 30 00  00 00 10 01  00 00 00 10 ; target sgl: address, key, 16 entries
00 00 7f 00 00 b0 00 00  00 00 10 02  00 01 00 00 ; data buffer: address, key, 65536 bytes
c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 ca cb cc cd ce cf  ; key of the rendezvous
00 00 00 11                                      ; queue pair 17
67 77 2d 61 2e 73                                ; rendezvous "gw-a.s"
80 07 00 46                                      ; carrier
02 00                                            ; kind 2 (soft RoCEv2), flags
01 02 01 80 00 00 00 00                          ; rsocket conn data
00 00 00 00 00 00 40 00  00 00 20 01  00 00 00 10
00 00 00 00 00 01 00 00  00 00 20 02  00 01 00 00
00 00 00 00 00 00 00 00 00 00 ff ff 0a 00 00 01  ; gid ::ffff:10.0.0.1
12 b7                                            ; udp port 4791
04 00                                            ; path mtu 1024
00 00 01 23                                      ; queue pair 0x123
00 ab cd ef                                      ; first psn
`,
	"accept": `
53 4d 47 57                                      ; eyecatcher
02                                               ; ACCEPT
01                                               ; version: the chosen one
00 64                                            ; length 100
80 03 00 10                                      ; gateway id
d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 da db dc dd de df
80 07 00 44                                      ; carrier
01 00                                            ; kind 1 (shm), flags
01 02 00 80 00 00 00 00                          ; rsocket conn data: 128 credits
00 00 7f 00 00 c0 30 00  00 00 30 01  00 00 00 10
00 00 7f 00 00 d0 00 00  00 00 30 02  00 00 80 00
e0 e1 e2 e3 e4 e5 e6 e7 e8 e9 ea eb ec ed ee ef  ; key of the rendezvous
00 00 00 12                                      ; queue pair 18
67 77 2d 62 2e 73                                ; rendezvous "gw-b.s"
`,
	"confirm": `
53 4d 47 57                                      ; eyecatcher
03                                               ; CONFIRM
01                                               ; version of the ACCEPT
00 0d                                            ; length 13
80 0b 00 01  01                                  ; chosen carrier: shm
`,
	"decline": `
53 4d 47 57                                      ; eyecatcher
04                                               ; DECLINE
01                                               ; version of the sender
00 0d                                            ; length 13
80 0a 00 01  21                                  ; reason 33, app_refused
`,
	"confirm-mac": `
53 4d 47 57  03 01 00 31                         ; CONFIRM, length 49
80 0b 00 01  01                                  ; chosen carrier: shm
00 09 00 20                                      ; mac, always the last TLV
13 22 a1 8d 92 7e a6 f1 60 7c a2 99 bc 79 f9 df  ; HMAC-SHA256, key "smcgw test key", by the client of
78 f1 95 8c 55 87 ba e8 30 7d 89 77 07 44 1c 2b  ; 10.0.0.1:40000 to 10.0.0.2:7000, ISNs 11223344 and
                                                 ; 55667788, previous mac 00 01 02 ... 1f
`,
	"decline-mac": `
53 4d 47 57  04 01 00 31                         ; DECLINE, length 49
80 0a 00 01  21                                  ; reason 33, app_refused
00 09 00 20                                      ; mac
9c bb 9e 05 83 74 ee 41 4b f2 35 b8 16 3e a0 5b  ; of the same, by the server
38 ad 2f 2c 0d 84 6b b3 b2 40 7b 46 68 bc a7 e0
`,
	"record-data": `
01 00 00 00                                      ; DATA, flags, zero
00 00 00 0d                                      ; length of the body: 8 + 5
00 00 00 01 00 00 00 02                          ; offset of the first byte
68 65 6c 6c 6f                                   ; "hello"
`,
	"record-end": `
02 00 00 00  00 00 00 08                         ; END
00 00 00 01 00 00 00 07                          ; final offset
`,
	"record-have": `
03 00 00 00  00 00 00 10                         ; HAVE
00 00 00 01 00 00 00 02                          ; consumed
00 00 00 00 00 04 00 00                          ; window 262144
`,
	"record-demote": `
04 00 00 00  00 00 00 00                         ; DEMOTE
`,
	"record-demote-done": `
05 00 00 00  00 00 00 00                         ; DEMOTE-DONE
`,
	"record-abort": `
06 00 00 00  00 00 00 04                         ; ABORT
3c 00 00 00                                      ; reason 60, lost_bytes; zero
`,
	"record-keepalive": `
07 00 00 00  00 00 00 00                         ; KEEPALIVE
`,
}

// vector returns the bytes of a golden vector.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, ok := vectors[name]
	require.True(t, ok, "vector %s", name)
	return golden.Unhex(t, text)
}

func TestProtocolDocument(t *testing.T) {
	doc := golden.Document(t)
	for name, text := range vectors {
		require.Contains(t, doc, "`"+name+"`:\n\n```"+text+"```\n", "vector %s", name)
	}
	for _, r := range Reasons() {
		require.Contains(t, doc, "`"+r.String()+"`", "reason %d", r)
	}
}

// requireTruncationFails checks that no proper prefix of b parses.
func requireTruncationFails(t *testing.T, b []byte, parse func([]byte) error) {
	t.Helper()
	for i := range b {
		require.ErrorIs(t, parse(b[:i]), ErrShort, "prefix of %d bytes", i)
	}
	require.NoError(t, parse(b))
}
