// Package guard decides when carrying does harm: when smcgw has reset too many of the
// connections that were carried or in process, or when connections within the share of the
// rollout take longer than those outside it. It reads no clock and changes nothing: its
// owner does.
package guard
