package verbs

import "time"

// rnrTimers are the delays of the 5-bit RNR NAK timer field in units of 10 µs
// (IBTA vol. 1, table 45).
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer returns the delay that a QPAttr.MinRNRTimer encodes: 0 is the longest, 655.36 ms; 1 is 10 µs; 12 is 640 µs.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}
