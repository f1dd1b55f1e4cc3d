// Package apps has the small network programs that tests run on hosts of a test network: ordinary servers and clients.
//
// A transparent gateway must be tested with programs that contain nothing of it. Only the standard library and the
// kernel's socket calls are on the data path here. What the data path must show (errno, duration, every byte, both
// half-closes, both addresses) is printed as one JSON object per line, an [Event].
//
// The programs are not separate binaries: a test binary runs them by executing itself with [Variable] set. Its TestMain
// calls [Init] first:
//
//	func TestMain(m *testing.M) {
//		apps.Init()
//		os.Exit(leak.Main(m))
//	}
//
// Without that call a test that starts an app runs its own tests again instead.
package apps
