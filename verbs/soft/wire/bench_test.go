package wire

import (
	"fmt"
	"hash/crc32"
	"testing"
)

// sink keeps results from being optimised away.
var sink uint32

func BenchmarkVerify(b *testing.B) {
	for name, c := range map[string]ICRC{"ipv4": NewICRC(flow4), "ipv6": NewICRC(flow6)} {
		for _, size := range []int{0, 1024, 4096} {
			d := sealed(&c, 777, make([]byte, size))
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(len(d)))
				for b.Loop() {
					if _, ok := c.Verify(d); !ok {
						b.Fatal("not verified")
					}
				}
			})
		}
	}
}

// BenchmarkPlain is the CRC alone, which BenchmarkVerify is to be measured by.
func BenchmarkPlain(b *testing.B) {
	for _, size := range []int{0, 1024, 4096} {
		d := make([]byte, BTHLen+size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(len(d)))
			for b.Loop() {
				sink += crc32.ChecksumIEEE(d)
			}
		})
	}
}

func BenchmarkBegin(b *testing.B) {
	c := NewICRC(flow4)
	for _, h := range []*Header{{Opcode: RCSendMiddle}, {Opcode: RCWriteOnly}, {Opcode: RCCompareSwap}} {
		b.Run(h.Opcode.String(), func(b *testing.B) {
			hdr := h.Append(nil, 1024)
			for b.Loop() {
				sink += c.Begin(5, 1024, hdr)
			}
		})
	}
}

func BenchmarkHeader(b *testing.B) {
	buf := make([]byte, 0, 128)
	for _, o := range []Opcode{RCSendMiddle, RCWriteOnlyImm, RCAcknowledge} {
		h := Header{Opcode: o, Migrated: true, PKey: 0xffff, DestQP: 17, PSN: 99, Length: 1024}
		b.Run("append/"+o.String(), func(b *testing.B) {
			for b.Loop() {
				buf = h.Append(buf[:0], 1024)
			}
		})
		d := append(h.Append(nil, 0), make([]byte, ICRCLen)...)
		b.Run("parse/"+o.String(), func(b *testing.B) {
			for b.Loop() {
				if _, err := h.Parse(d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNewICRC(b *testing.B) {
	for b.Loop() {
		c := NewICRC(flow6)
		sink += c.state
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
