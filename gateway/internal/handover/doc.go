// Package handover implements how one gateway, or one configuration, follows another on a host:
//
//   - a takeover, one conversation between the gateway that runs ([Incumbent]) and its
//     successor, which talks to a [Predecessor];
//   - a drain, the end of a gateway that serves its connections to their end ([Drainer]);
//   - a reload, which may end in a takeover ([Renewal]), with its outcome ([Reloads]) and the
//     pause after one that failed ([Backoff]).
//
// What exactly a gateway yields and takes back is up to that gateway, and so is the place where operators find it. The
// trap: until a takeover is complete the old gateway may take everything back, so its successor must change nothing of
// it. The service manager must be told of only one reload at a time.
package handover
