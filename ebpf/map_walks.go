package ebpf

import (
	"errors"

	bpf "github.com/cilium/ebpf"
)

// walks bounds how often a map is walked again. Only on a host that does nothing else would every single one of them be
// disturbed by a change.
const walks = 32

// deleteWhere deletes the entries whose key matches and returns their number. It collects the keys first, because a
// walk that deletes as it goes starts over. It repeats a walk that others have cut short, as happens in a full LRU map.
func deleteWhere[K any](m *bpf.Map, match func(K) bool) (n int, err error) {
	for range walks {
		var keys []K
		if keys, err = keysWhere(m, match); err != nil && !errors.Is(err, bpf.ErrIterationAborted) {
			return n, err
		}
		for _, k := range keys {
			switch err := m.Delete(k); {
			case err == nil:
				n++
			case !errors.Is(err, bpf.ErrKeyNotExist):
				return n, err
			}
		}
		if err == nil {
			break
		}
	}
	return n, err
}

// dropWhere is deleteWhere without the count.
func dropWhere[K any](m *bpf.Map, match func(K) bool) error {
	_, err := deleteWhere(m, match)
	return err
}

// keysWhere returns the matching keys, as far as the walk got.
func keysWhere[K any](m *bpf.Map, match func(K) bool) (keys []K, err error) {
	var k K
	value := make([]byte, m.ValueSize())
	it := m.Iterate()
	for it.Next(&k, &value) {
		if match(k) {
			keys = append(keys, k)
		}
	}
	return keys, it.Err()
}
