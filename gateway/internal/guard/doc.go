// Package guard decides when carrying does harm: when gateways reset too many of the
// connections that they carried. It reads no clock and changes nothing: its owner does.
package guard
