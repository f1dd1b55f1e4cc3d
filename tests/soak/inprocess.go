package main

import "time"

// inProcess runs the random test of the library for a time: connections between programs of this host, some of which
// are killed, like the brokers. It yields the processors to the load. A round counts as a flow, a kill as a fault.
func (s *soak) inProcess(d time.Duration) {
	began := time.Now()
	r, err := s.inprocess.Model(s.life, s.seed, d)
	s.ledger.add(int64(r.Rounds), int64(r.Bytes))
	s.ledger.faulted(int64(r.Kills + r.Brokers))
	s.ledger.say("in process: %v", r)
	s.broke(began, "in process", err)
}
