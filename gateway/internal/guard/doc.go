// Package guard decides when carrying does harm: when gateways reset too many of the
// connections that they carried, or connections in the share of the rollout take longer
// than those outside of it. It reads no clock and changes nothing: its owner does.
package guard
