package listing

import (
	"errors"

	bpf "github.com/cilium/ebpf"
)

// DeleteWhere removes the entries whose key matches, and counts them. Keys are collected
// first: a walk that deletes under itself starts over. A walk that others cut short, as a
// full map does that forgets the oldest, is made again.
func DeleteWhere[K any](m *bpf.Map, match func(K) bool) (n int, err error) {
	for range tries {
		var keys []K
		if keys, err = KeysWhere(m, match); err != nil && !errors.Is(err, bpf.ErrIterationAborted) {
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

// DropWhere is DeleteWhere without the count.
func DropWhere[K any](m *bpf.Map, match func(K) bool) error {
	_, err := DeleteWhere(m, match)
	return err
}

// KeysWhere lists the keys that match, as far as a walk comes.
func KeysWhere[K any](m *bpf.Map, match func(K) bool) (keys []K, err error) {
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
