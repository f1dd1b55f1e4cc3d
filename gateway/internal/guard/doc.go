// Package guard decides when carrying does harm: when smcgw has reset too many of the connections that were carried or
// promoted, or when connections within the rollout's share take longer than those outside it. It reads no clock and
// changes nothing; that is up to its owner.
package guard
