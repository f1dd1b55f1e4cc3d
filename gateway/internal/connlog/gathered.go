package connlog

import (
	"sync"
	"time"
)

// gatherPause is how long a line waits for others of its kind: what fails on a host fails for thousands of connections
// at once.
const gatherPause = time.Second

// gathered writes one line for all connections of a second that share a key. It relies on the number of possible keys
// being small. The zero value is ready to use.
type gathered[K comparable] struct {
	mu      sync.Mutex // guards everything below
	pending map[K]*gatheredLine
}

type gatheredLine struct {
	timer *time.Timer
	count int
	write func(count int)
}

// add counts a connection. For the first of its key, write is kept, to write the line when it is due.
func (l *gathered[K]) add(key K, write func(count int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.pending[key]; line != nil {
		line.count++
		return
	}
	if l.pending == nil {
		l.pending = map[K]*gatheredLine{}
	}
	l.pending[key] = &gatheredLine{count: 1, write: write, timer: time.AfterFunc(gatherPause, func() { l.due(key) })}
}

// due writes the line of a key, unless it has been written.
func (l *gathered[K]) due(key K) {
	l.mu.Lock()
	line := l.pending[key]
	delete(l.pending, key)
	l.mu.Unlock()
	if line != nil {
		line.write(line.count)
	}
}

// flush writes the lines that wait.
func (l *gathered[K]) flush() {
	l.mu.Lock()
	var keys []K
	for key, line := range l.pending {
		line.timer.Stop()
		keys = append(keys, key)
	}
	l.mu.Unlock()
	for _, key := range keys {
		l.due(key)
	}
}
