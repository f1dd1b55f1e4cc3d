// Package apps holds the small network programs that tests run on hosts of a
// test network: ordinary servers and clients.
//
// It exists because a transparent gateway must be tested with programs that
// contain nothing of it. Nothing here but the standard library and the
// kernel's socket calls is on the data path; what the data path must show
// (errno, duration, every byte, both half-closes, both addresses) is printed as
// one JSON object a line, an [Event].
//
// The programs are no separate binaries: a test binary runs them by executing
// itself with [Variable] set. Its TestMain calls [Init] first:
//
//	func TestMain(m *testing.M) {
//		apps.Init()
//		os.Exit(leak.Main(m))
//	}
//
// The trap: without that call a test that starts an app runs its own tests
// again instead.
package apps
