// Package completion is what the completion queues of software devices have in
// common: a ring that grows up to its depth, and arming. What a full queue does
// is its device's choice.
package completion
