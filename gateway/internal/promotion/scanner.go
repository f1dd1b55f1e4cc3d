package promotion

import "github.com/smcgw/smcgw/inprocess/scan"

// scanner asks package scan about a process. A process that may not be looked at has system calls of its own, for all
// that is known.
type scanner struct{ files *scan.Scanner }

// RawCalls implements broker.Scanner.
func (s scanner) RawCalls(pid int) (bool, error) {
	r, err := s.files.Process(pid)
	if err != nil {
		return true, err
	}
	return !r.Promotable(), nil
}
