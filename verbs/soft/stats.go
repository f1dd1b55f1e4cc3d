package soft

import "sync/atomic"

// Stats is a snapshot of a device's activity since it was opened.
type Stats struct {
	QPs, MRs, CQs uint64 // now
	Memory        uint64 // bytes of AllocMR, now

	TxPackets, TxBytes uint64 // UDP datagrams and their payload
	RxPackets, RxBytes uint64
	TxCalls, RxCalls   uint64 // system calls for them
	TxErrors           uint64 // trains refused by the kernel

	Retransmits    uint64 // packets sent again
	Timeouts       uint64 // retransmission timers that ran out
	SequenceNAKs   uint64 // NAK of a gap, received
	RNRNAKs        uint64 // receiver not ready, received
	SentNAKs       uint64 // NAK of a gap, sent
	SentRNRNAKs    uint64 // receiver not ready, sent
	Duplicates     uint64 // requests received again
	Early          uint64 // requests received before their turn, and kept
	CNPs           uint64 // congestion notifications received
	SentCNPs       uint64 // congestion notifications sent
	QPErrors       uint64 // queue pairs that an error moved to ERR
	DropMalformed  uint64 // not a RoCE packet
	DropNoQP       uint64 // for a queue pair that does not exist or does not receive
	DropSource     uint64 // not from the queue pair's peer
	DropICRC       uint64 // invariant CRC wrong
	DropKey        uint64 // wrong P_Key or Q_Key
	DropNoRecv     uint64 // datagram without a posted receive
	DropUnexpected uint64 // does not fit the state of the queue pair
	DropRefused    uint64 // asks a guarded queue pair for what it does not grant
	DropStray      uint64 // for another vector, whose queue was full
}

// counters are the device's counters. Each event is counted once, where it is detected.
type counters struct {
	retransmits, timeouts, sequenceNAKs, rnrNAKs, sentNAKs, sentRNRNAKs, duplicates, early, cnps, sentCNPs, qpErrors,
	dropMalformed, dropNoQP, dropSource, dropICRC, dropKey, dropNoRecv, dropUnexpected, dropRefused, dropStray atomic.Uint64
}

// Stats returns a snapshot. Any goroutine may call it.
func (d *Device) Stats() Stats {
	c := &d.count
	s := Stats{
		QPs: uint64(d.qpCount.Load()), MRs: uint64(d.keys.count.Load()), CQs: uint64(d.cqCount.Load()),
		Memory:      uint64(d.memory.Load()),
		Retransmits: c.retransmits.Load(), Timeouts: c.timeouts.Load(),
		SequenceNAKs: c.sequenceNAKs.Load(), RNRNAKs: c.rnrNAKs.Load(),
		SentNAKs: c.sentNAKs.Load(), SentRNRNAKs: c.sentRNRNAKs.Load(), Duplicates: c.duplicates.Load(), Early: c.early.Load(),
		CNPs: c.cnps.Load(), SentCNPs: c.sentCNPs.Load(), QPErrors: c.qpErrors.Load(),
		DropMalformed: c.dropMalformed.Load(), DropNoQP: c.dropNoQP.Load(), DropSource: c.dropSource.Load(),
		DropICRC: c.dropICRC.Load(), DropKey: c.dropKey.Load(), DropNoRecv: c.dropNoRecv.Load(),
		DropUnexpected: c.dropUnexpected.Load(), DropRefused: c.dropRefused.Load(), DropStray: c.dropStray.Load(),
	}
	for _, v := range d.vectors {
		l := v.link.stats()
		s.TxPackets += l.SentPackets
		s.TxBytes += l.SentBytes
		s.TxCalls += l.SentCalls
		s.TxErrors += l.SendErrors
		s.RxPackets += l.ReceivedPackets
		s.RxBytes += l.ReceivedBytes
		s.RxCalls += l.ReceivedCalls
	}
	return s
}
