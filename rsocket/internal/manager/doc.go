// Package manager connects queue pairs by a communication manager: that of package cm on a device with queue pair 1,
// elsewhere the kernel's. Which of them it is makes no difference behind the door.
//
// It knows no streams: what the two ends say to each other while they connect is private data, bytes. The trap: a
// [Request] that is neither accepted nor refused keeps its place until the manager gives it up.
package manager
