package clc

import (
	"fmt"
	"strings"
)

// MaxRendezvousName bounds the name of a rendezvous socket: it must fit sun_path behind shm_dir.
const MaxRendezvousName = 64

// Max24 is the largest queue pair number or packet sequence number of RoCEv2 (IBTA vol. 1, 9.2).
const Max24 = 1<<24 - 1

// RoCEPort is the UDP port on which adapters send and receive, as RoCEv2 demands.
const RoCEPort = 4791

// ValidName reports whether s is a plain file name. The receiver joins it to its own shm_dir.
func ValidName(s string) bool {
	return s != "" && len(s) <= MaxRendezvousName && s[0] != '.' && !strings.ContainsAny(s, "/\x00")
}

// ValidMTU reports whether n is a path MTU of the IBTA specification (vol. 1, 9.6.1).
func ValidMTU(n uint16) bool {
	return n >= 256 && n <= 4096 && n&(n-1) == 0
}

// SetVersions parses the range of versions that a sender speaks.
func SetVersions(v []byte, lowest, highest *uint8) error {
	if err := Want(v, 2); err != nil {
		return err
	}
	*lowest, *highest = v[0], v[1]
	if *lowest > *highest {
		return fmt.Errorf("versions %d to %d: %w", v[0], v[1], ErrMalformed)
	}
	return nil
}

// SetReason parses a reason, which must not be zero.
func SetReason[R ~uint8](r *R, v []byte) error {
	if err := Want(v, 1); err != nil {
		return err
	}
	if v[0] == 0 {
		return fmt.Errorf("reason zero: %w", ErrMalformed)
	}
	*r = R(v[0])
	return nil
}
