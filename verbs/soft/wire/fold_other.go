//go:build !amd64

package wire

// canFold is false: other processors have an instruction for this CRC, or nothing suitable.
const canFold = false

func fold(uint32, []byte, *folding) uint32 { panic("not on this processor") }

func foldCopy(uint32, []byte, []byte, *folding) uint32 { panic("not on this processor") }
