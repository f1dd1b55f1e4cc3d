// Package paws protects against wrapped sequence numbers (RFC 7323 5): a segment with a timestamp older than one that came
// before is an old duplicate, whatever its sequence number. It has no clock; timestamps are those of the wire.
package paws
