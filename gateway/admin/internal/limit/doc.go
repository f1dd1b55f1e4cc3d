// Package limit bounds what clients of the admin socket can have at once: connections, and
// documents that take memory until they are read. Some of either is kept for those that may
// change something.
package limit
