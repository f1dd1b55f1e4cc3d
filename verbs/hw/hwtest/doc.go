// Package hwtest is a fake of libibverbs and an adapter for tests: its adapters' queue pairs are those of verbs/soft,
// behind the calls of package ibv.
//
// The accounting between verbs and libibverbs is where mistakes happen, and adapters are rare. The fake is stricter
// than the library: using a handle after its object was destroyed panics. It can be told to do what adapters may do:
// drop completions, refuse requests, be slow, be removed.
//
// The trap: it does not measure speed. One goroutine executes each call and also does the adapter's work.
package hwtest
