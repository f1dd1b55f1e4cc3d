package mirror

// ID returns the number of the end.
func (e *End) ID() uint64 { return e.cfg.ID }

// Bells returns how often the library has rung for the end.
func (e *End) Bells() uint64 { return e.bells.Load() }

// Doorbells returns how often the end has rung for a reader.
func (e *End) Doorbells() uint64 { return e.doorbells.Load() }

// HotFor is how long an end stays hot, SettleFor how long one that is settled waits at most.
const (
	HotFor    = hotFor
	SettleFor = settleFor
)
