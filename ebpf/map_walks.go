package ebpf

import (
	"errors"

	bpf "github.com/cilium/ebpf"
)

// walks bounds the walks of a map. Something comes or goes within each of them only on a host
// that does nothing else.
const walks = 32

// deleteWhere removes the entries whose key matches, and counts them. Keys are collected
// first: a walk that deletes under itself starts over. A walk that others cut short, as a
// full map does that forgets the oldest, is made again.
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

// keysWhere lists the keys that match, as far as a walk comes.
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
