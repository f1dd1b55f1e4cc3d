// Package hwtest stands for libibverbs and an adapter in tests: the queue pairs
// of its adapters are those of verbs/soft, under the calls of package ibv.
//
// It exists because the accounting between verbs and libibverbs is where the
// mistakes are, and adapters are rare. It is stricter than a library: a handle
// that is used after its object was destroyed panics, and what an adapter may do
// it can be told to do: forget completions, refuse requests, be slow, go away.
//
// The trap: it is no measure of speed. Each call is done by the one goroutine
// that also does the adapter's work.
package hwtest
