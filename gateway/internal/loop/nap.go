package loop

import "time"

// Streamer is implemented by drivers that know whether they move a stream.
type Streamer interface {
	// Streams reports whether much has moved since the last call.
	Streams() bool
}

// napFor is how long a shard that has run out of work in a stream sleeps before it looks again. It arms nothing for
// that: what comes meanwhile wakes nobody, and is handled at once. The kernel's timers add about 50 µs.
const napFor = 30 * time.Microsecond

// streams asks each driver, since each counts from the last call on.
func (s *Shard) streams() (yes bool) {
	for _, d := range s.drivers {
		if st, ok := d.(Streamer); ok {
			yes = st.Streams() || yes
		}
	}
	return yes
}
