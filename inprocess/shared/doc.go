// Package shared creates the memory that a gateway hands to processes: sparse files of fixed size with one writer,
// which others read through a descriptor that cannot be reopened for writing. It maps nothing.
//
// The trap: nothing can be sealed any more after [Seal]. Memory that only its creator writes must be mapped first and
// then sealed against other writers.
package shared
