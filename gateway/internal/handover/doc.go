// Package handover is how one gateway, or one configuration, follows another on a host: a
// takeover, which is one conversation between the gateway that is there ([Incumbent]) and its
// successor ([Predecessor] is what that has of it); the end of a gateway whose connections
// are served to their end ([Drainer]), and reloads, which may end in either ([Renewal]),
// with what came of them ([Reloads]) and their spacing when they fail ([Backoff]).
//
// What a gateway gives up and takes back is its own, and so is the place where operators find it.
// The trap: until a takeover has come to its end the old gateway takes everything
// back, so nothing of it may be changed from here. The service manager hears of one reload at
// a time.
package handover
