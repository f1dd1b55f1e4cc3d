package wire

import (
	"fmt"
	"testing"
)

// sink keeps results from being optimised away.
var sink uint32

func BenchmarkVerify(b *testing.B) {
	for name, c := range map[string]ICRC{"ipv4": NewICRC(flow4), "ipv6": NewICRC(flow6)} {
		for _, size := range []int{0, 1024, 4096} {
			d := sealed(&c, 777, make([]byte, size))
			for _, expected := range []uint16{777, 0} {
				b.Run(fmt.Sprintf("%s/%d/%d", name, size, expected), func(b *testing.B) {
					b.SetBytes(int64(len(d)))
					for b.Loop() {
						if _, ok := c.Verify(expected, d); !ok {
							b.Fatal("not verified")
						}
					}
				})
			}
		}
	}
}

// BenchmarkUpdate is the CRC of payloads, and with a copy of them.
func BenchmarkUpdate(b *testing.B) {
	dst := make([]byte, 0, 4096)
	for _, size := range []int{1024, 4096} {
		d := make([]byte, size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				sink += Update(0, d)
			}
		})
		b.Run(fmt.Sprintf("%d/append", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				_, s := UpdateAppend(dst, 0, d)
				sink += s
			}
		})
	}
}
